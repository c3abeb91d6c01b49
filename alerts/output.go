package alerts

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/detectors"
)

// stamp writes event time as people and tools read it.
func stamp(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339Nano) }

// alertLine is the JSON of one transition.
type alertLine struct {
	At         string             `json:"at"`
	Alert      string             `json:"alert"`
	State      State              `json:"state"`
	Suppressed string             `json:"suppressed,omitempty"`
	Severity   Severity           `json:"severity"`
	Labels     map[string]string  `json:"labels"`
	StartsAt   string             `json:"starts_at"`
	EndsAt     *string            `json:"ends_at"`
	Value      detectors.Num      `json:"value"`
	Threshold  detectors.Num      `json:"threshold"`
	Cause      Cause              `json:"cause"`
	Incident   *incidentLine      `json:"incident,omitempty"`
	Coverage   coverageLine       `json:"coverage"`
	Evidence   detectors.Evidence `json:"evidence"`
	Advice     []Advice           `json:"advice"`
}

// incidentLine is the JSON of an Incident.
type incidentLine struct {
	ID       string       `json:"id"`
	StartsAt string       `json:"starts_at"`
	Members  []memberLine `json:"members"`
	Merged   []mergedLine `json:"merged,omitempty"`
	Apart    []Apart      `json:"apart,omitempty"`
}

type mergedLine struct {
	ID      string `json:"id"`
	At      string `json:"at"`
	Because string `json:"because"`
}

type memberLine struct {
	Detector string            `json:"detector"`
	Labels   map[string]string `json:"labels"`
	Onset    string            `json:"onset"`
	After    string            `json:"after,omitempty"`
	Because  string            `json:"because,omitempty"`
}

func (in *Incident) line() *incidentLine {
	if in == nil {
		return nil
	}
	l := &incidentLine{ID: in.ID, StartsAt: stamp(in.StartsAt), Apart: in.Apart}
	for _, m := range in.Merged {
		l.Merged = append(l.Merged, mergedLine{m.ID, stamp(m.At), m.Because})
	}
	for _, m := range in.Members {
		l.Members = append(l.Members, memberLine{m.Detector, labelMap(m.Labels), stamp(m.Onset), m.After, m.Because})
	}
	return l
}

// detectionLine is the JSON of a detection that became active or was over.
type detectionLine struct {
	At        string             `json:"at"`
	Detection string             `json:"detection"`
	State     string             `json:"state"`
	Labels    map[string]string  `json:"labels"`
	Value     detectors.Num      `json:"value"`
	Evidence  detectors.Evidence `json:"evidence"`
}

// AppendJSON appends the alert as one line of JSON with its line end. Equal alerts give equal bytes, and no
// character of a log line can change how the line is shown.
func AppendJSON(dst []byte, a *Alert) []byte {
	line := alertLine{
		At: stamp(a.At), Alert: a.Name, State: a.State, Suppressed: a.Suppressed, Severity: a.Severity, Labels: labelMap(a.Labels),
		StartsAt: stamp(a.StartsAt), Value: detectors.N(a.Value), Threshold: detectors.N(a.Threshold),
		Cause: a.Cause, Evidence: a.Evidence, Advice: a.Advice, Incident: a.Incident.line(), Coverage: a.Coverage.line(),
	}
	if line.Advice == nil {
		line.Advice = []Advice{}
	}
	if a.State == Resolved {
		end := stamp(a.EndsAt)
		line.EndsAt = &end
	}
	return appendLine(dst, line)
}

// AppendDetectionJSON appends a detection that became active or was over at an event time (ns), as one line. Where its
// source fell silent its state is unknown: it was not seen any more, and nobody knows whether it was over.
func AppendDetectionJSON(dst []byte, at int64, d *detectors.Detection) []byte {
	line := detectionLine{
		At: stamp(at), Detection: d.Detector, State: "over", Labels: labelMap(d.Labels),
		Value: detectors.N(d.Value), Evidence: d.Evidence,
	}
	switch {
	case d.Active:
		line.State = active
	case d.Unknown:
		line.State = "unknown"
	}
	return appendLine(dst, line)
}

func appendLine(dst []byte, v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return dst // the types hold nothing that cannot be encoded
	}
	return appendJSONSafe(dst, b.Bytes())
}

func labelMap(l detectors.Labels) map[string]string {
	m := make(map[string]string, len(l))
	for _, x := range l {
		m[x.Name] = x.Value
	}
	return m
}

// Title is the alert in one line, escaped.
func (a *Alert) Title() string {
	title := strings.ToUpper(string(a.State)) + " [" + string(a.Severity) + "] " + a.Name + " " + a.Labels.String()
	return Escape(title)
}

// AppendText appends the alert as a block for people, escaped, ended by an empty line.
func AppendText(dst []byte, a *Alert) []byte {
	line := func(parts ...string) {
		for _, p := range parts {
			dst = append(dst, p...)
		}
		dst = append(dst, '\n')
	}
	block := func(head, text string) {
		if text == "" {
			return
		}
		line("  ", head, ":")
		for l := range strings.SplitSeq(text, "\n") {
			line("    ", Escape(l))
		}
	}
	line(stamp(a.At), " ", a.Title())
	if s := a.Annotations["summary"]; s != "" {
		line("  ", Escape(s))
	}
	if a.State == Resolved {
		line("  from ", stamp(a.StartsAt), " to ", stamp(a.EndsAt), ", ", time.Duration(a.EndsAt-a.StartsAt).String())
	} else {
		line("  since ", stamp(a.StartsAt))
	}
	if a.Suppressed != "" {
		line("  held back by ", Escape(a.Suppressed), ": no receiver is told")
	}
	if a.Cause.Text != "" {
		line("  cause (", string(a.Cause.Verdict), "): ", Escape(a.Cause.Text))
	}
	for _, m := range a.Cause.Missing {
		line("    missing: ", Escape(m))
	}
	block("evidence", a.Annotations["evidence"])
	for _, ad := range a.Advice {
		line("  advice for ", ad.Layer, ": ", Escape(ad.Text))
		if ad.Snippet != "" {
			for l := range strings.SplitSeq(ad.Snippet, "\n") {
				line("    | ", Escape(l))
			}
		}
		if ad.Verify != "" {
			line("    verify: ", Escape(ad.Verify))
		}
	}
	shown := []string{"summary", "description", "cause", "evidence", "advice"}
	for _, name := range sortedKeys(a.Annotations) {
		if !slices.Contains(shown, name) {
			line("  ", Escape(name), ": ", Escape(a.Annotations[name]))
		}
	}
	return append(dst, '\n')
}
