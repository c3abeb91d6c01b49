package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/squall-sre/squall/alerts"
)

// incidentJSON is an incident with what became of the fix of the one before.
type incidentJSON struct {
	Incident    alerts.Entry       `json:"incident"`
	Compared    *alerts.Comparison `json:"compared,omitempty"` // with the last one of its kind; absent: none is known
	Annotations []alerts.Mark      `json:"annotations,omitempty"`
}

// ledgerRoutes are those of incidents and annotations.
func (c webServerConfig) ledgerRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/v1/incidents", c.incidents)
	mux.HandleFunc("GET /api/v1/incidents/{id}", c.incident)
	mux.HandleFunc("GET /api/v1/annotations", c.annotations)
	mux.HandleFunc("POST /api/v1/annotations", c.annotate)
	mux.HandleFunc("POST "+annotateAlertsPath, c.annotateAlerts)
}

// annotateAlertsPath takes Alertmanager's webhook.
const annotateAlertsPath = "/api/v1/annotations/alertmanager"

// newestFirst sorts incidents.
func newestFirst(list []alerts.Entry) []alerts.Entry {
	slices.SortFunc(list, func(a, b alerts.Entry) int { return cmp.Or(cmp.Compare(b.From, a.From), strings.Compare(a.ID, b.ID)) })
	return list
}

func writeDocument(w http.ResponseWriter, v any) {
	out, err := alerts.AppendJSONDocument(nil, v)
	if err != nil {
		say(w, http.StatusInternalServerError, err.Error())
		return
	}
	writeJSON(w, out)
}

// incidents answers {"incidents":[…]}, the newest first.
func (c webServerConfig) incidents(w http.ResponseWriter, _ *http.Request) {
	writeDocument(w, map[string]any{"incidents": append([]alerts.Entry{}, c.State.Incidents()...)})
}

// incident answers one incident, compared with the last one of its kind.
func (c webServerConfig) incident(w http.ResponseWriter, r *http.Request) {
	all, id := c.State.Incidents(), r.PathValue("id")
	i := slices.IndexFunc(all, func(e alerts.Entry) bool { return e.ID == id })
	if i < 0 {
		say(w, http.StatusNotFound, "no incident "+id)
		return
	}
	writeDocument(w, together(all[i], all, c.State.Marks()))
}

// together is an incident with its comparison and the annotations of its time.
func together(e alerts.Entry, known []alerts.Entry, marks []alerts.Mark) incidentJSON {
	out := incidentJSON{Incident: e}
	if before := e.Earlier(known); before != nil {
		x := alerts.Compare(before, &e, marks)
		out.Compared = &x
	}
	for _, m := range marks {
		if m.Concerns(e.Sites) && m.At >= e.From && (e.Ongoing || m.At <= e.To) {
			out.Annotations = append(out.Annotations, m)
		}
	}
	return out
}

// annotations answers {"annotations":[…]}, the oldest first.
func (c webServerConfig) annotations(w http.ResponseWriter, _ *http.Request) {
	writeDocument(w, map[string]any{"annotations": append([]alerts.Mark{}, c.State.Marks()...)})
}

// annotate takes {"text":…, "site":…, "at":…}; without a time it is now.
func (c webServerConfig) annotate(w http.ResponseWriter, r *http.Request) {
	var m alerts.Mark
	if err := decodeBody(r, &m, true); err != nil {
		say(w, refusal(err), "an annotation is {\"text\": …, \"site\": …, \"at\": RFC 3339}: "+err.Error())
		return
	}
	if m.At == 0 {
		m.At = alerts.Instant(time.Now().UnixNano())
	}
	m.Source = cmp.Or(m.Source, "annotate")
	c.keep(w, r, []alerts.Mark{m})
}

// refusal is the status for a body that cannot be taken.
func refusal(err error) int {
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadRequest
}

// alertmanagerPayload is the part of Alertmanager's webhook, version 4, that is looked at.
type alertmanagerPayload struct {
	Version string `json:"version"`
	Alerts  []struct {
		Status      string            `json:"status"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
		StartsAt    time.Time         `json:"startsAt"`
		EndsAt      time.Time         `json:"endsAt"`
	} `json:"alerts"`
}

// mostOfPayload is how many alerts of one payload are taken.
const mostOfPayload = 100

// annotateAlerts takes Alertmanager's webhook, version 4: other people's alerts stand on the timeline.
func (c webServerConfig) annotateAlerts(w http.ResponseWriter, r *http.Request) {
	var p alertmanagerPayload
	err := decodeBody(r, &p, false)
	if err == nil && p.Version != "4" {
		err = fmt.Errorf("the version is %q", p.Version)
	}
	if err != nil {
		say(w, refusal(err), "this takes the webhook of Alertmanager, version 4: "+err.Error())
		return
	}
	var marks []alerts.Mark
	for _, a := range p.Alerts[:min(len(p.Alerts), mostOfPayload)] {
		text := cmp.Or(a.Labels["alertname"], "alert") + " " + a.Status
		if s := cmp.Or(a.Annotations["summary"], a.Annotations["description"]); s != "" {
			text += ": " + s
		}
		at := a.StartsAt
		if a.Status == string(alerts.Resolved) && !a.EndsAt.IsZero() {
			at = a.EndsAt
		}
		if at.Year() < 1971 {
			at = time.Now()
		}
		marks = append(marks, alerts.Mark{At: alerts.Instant(at.UnixNano()), Text: text, Site: a.Labels["site"], Source: "alertmanager"})
	}
	c.keep(w, r, marks)
}

// keepTime bounds how long a request waits for the disk.
const keepTime = 5 * time.Second

func (c webServerConfig) keep(w http.ResponseWriter, r *http.Request, marks []alerts.Mark) {
	for i := range marks {
		var err error
		if marks[i], err = marks[i].Clean(); err != nil {
			say(w, http.StatusBadRequest, err.Error())
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), keepTime)
	defer cancel()
	if err := c.State.Annotate(ctx, marks); err != nil {
		say(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	say(w, http.StatusOK, "noted")
}

// decodeBody reads one JSON value. A form that a page of another site could send without asking is refused by its type.
func decodeBody(r *http.Request, into any, strict bool) error {
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); strings.TrimSpace(kind) != "application/json" {
		return errors.New("Content-Type is not application/json")
	}
	d := json.NewDecoder(r.Body)
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}
