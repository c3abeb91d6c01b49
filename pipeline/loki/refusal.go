package loki

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/grafana/loki/pkg/push"
)

// Why Loki refused lines: the values of a metric's label.
const (
	refusedTooOld      = "too_old"
	refusedTooNew      = "too_new"
	refusedBehind      = "too_far_behind"
	refusedTooLong     = "line_too_long"
	refusedLabels      = "labels"
	refusedMetadata    = "structured_metadata"
	refusedOther       = "other"
	refusedStreamLimit = "stream_limit"
	refusedUnread      = "unreadable" // refused alone, while a canary passed
	refusedServer      = "server_error"
	refusedTooLarge    = "too_large"
)

var refusedReasons = []string{
	refusedTooOld, refusedTooNew, refusedBehind, refusedTooLong, refusedLabels, refusedMetadata, refusedOther,
	refusedStreamLimit, refusedUnread, refusedServer, refusedTooLarge,
}

// metadataOff is no reason to refuse a line: it is sent again without structured metadata.
const metadataOff = "metadata_off"

// A refusal is what a 400 says about the entries of one reason.
type refusal struct {
	reason string
	count  int   // entries; of labels, streams
	of     int   // entries that got as far as this check; 0: all
	limit  int64 // bytes of a line or of metadata, or number of metadata
	number bool  // the limit is one of number
	bound  int64 // ns, in whole seconds: what is older (too_old, too_far_behind) or not older (too_new) is refused; 0: not told
}

const signManyMetadata = "too many structured metadata labels"

// What Loki's sentences contain. Entries are checked in this order: an entry is named by the first that it fails.
// The ingester's ("ignored, reason:") come later, and instead of all others.
var refusalSigns = []struct{ sign, reason string }{
	{"label names; limit", refusedLabels},
	{"has label name too long", refusedLabels},
	{"has label value too long", refusedLabels},
	{"has duplicate label name", refusedLabels},
	{"has timestamp too old", refusedTooOld},
	{"has timestamp too new", refusedTooNew},
	{"max entry size", refusedTooLong},
	{"structured metadata, but this feature is disallowed", metadataOff},
	{"allow_structured_metadata", metadataOff},
	{"has structured metadata too large", refusedMetadata},
	{signManyMetadata, refusedMetadata},
	{"entry too far behind", refusedBehind},
	{"ignored, reason:", refusedOther},
}

// These look at answers that are errors, never at lines.
var (
	manyErrors   = regexp.MustCompile(`(\d+) errors? like: `)
	totalIgnored = regexp.MustCompile(`total ignored: (\d+) out of (\d+)`)
	oldestBound  = regexp.MustCompile(`oldest acceptable timestamp is: (\S+?Z)`)
	newTimestamp = regexp.MustCompile(`has timestamp too new: (\S+?Z)`)
	toldLimit    = regexp.MustCompile(`(?:max entry size|limit:) '(\d+)'`)
)

// refusals reads which entries a 400 names: "N errors like: …; M errors like: …" with a sentence for each that is
// different, one sentence alone, or the list of an ingester with its total.
func refusals(text string) []refusal {
	var found []refusal
	add := func(r refusal) {
		for i := range found {
			if f := &found[i]; f.reason == r.reason && f.limit == r.limit && f.number == r.number {
				f.count += r.count
				if r.reason == refusedTooNew && r.bound != 0 {
					f.bound = min(f.bound, r.bound)
				}
				return
			}
		}
		found = append(found, r)
	}
	parts := manyErrors.FindAllStringSubmatchIndex(text, -1)
	if len(parts) == 0 {
		if r, ok := readRefusal(text); ok {
			add(r)
		}
		return found
	}
	for i, part := range parts {
		end := len(text)
		if i+1 < len(parts) {
			end = parts[i+1][0]
		}
		r, ok := readRefusal(text[part[1]:end])
		if !ok {
			continue
		}
		if n, err := strconv.Atoi(text[part[2]:part[3]]); err == nil {
			r.count = n
		}
		add(r)
	}
	return found
}

func readRefusal(text string) (refusal, bool) {
	i := slices.IndexFunc(refusalSigns, func(s struct{ sign, reason string }) bool { return strings.Contains(text, s.sign) })
	if i < 0 {
		return refusal{}, false
	}
	r := refusal{reason: refusalSigns[i].reason, count: 1, number: refusalSigns[i].sign == signManyMetadata}
	if totals := totalIgnored.FindAllStringSubmatch(text, -1); len(totals) > 0 {
		r.count = 0
		for _, t := range totals {
			n, _ := strconv.Atoi(t[1])
			of, _ := strconv.Atoi(t[2])
			r.count, r.of = r.count+n, r.of+of
		}
	}
	if m := toldLimit.FindStringSubmatch(text); m != nil {
		r.limit, _ = strconv.ParseInt(m[1], 10, 64)
	}
	bound := oldestBound
	if r.reason == refusedTooNew {
		bound = newTimestamp
	}
	if m := bound.FindStringSubmatch(text); m != nil {
		if t, err := time.Parse(time.RFC3339, m[1]); err == nil {
			r.bound = t.UnixNano()
		}
	}
	return r, true
}

// A finding is what a 400 means for a push.
type finding struct {
	refused []refusedLines
	off     *batch // lines to be sent again without structured metadata
	rest    *batch // nobody spoke of these; nil: none
	hidden  bool   // the rest may hold lines that the answer did not come to speak of
}

type refusedLines struct {
	reason string
	lines  *batch
}

// A ref is the place of an entry in a batch.
type ref struct {
	part  int
	entry *push.Entry
}

// find tells which entries of b the answer speaks of. It is false when that cannot be told exactly: Loki gives
// numbers, bounds and limits, and they must agree with what was sent.
func (b *batch) find(text string) (finding, bool) {
	var f finding
	refs := make([]ref, 0, b.lines)
	for i := range b.parts {
		for j := range b.parts[i].entries {
			refs = append(refs, ref{i, &b.parts[i].entries[j]})
		}
	}
	named := refusals(text)
	for _, s := range refusalSigns {
		for i := range named {
			r := &named[i]
			if r.reason != s.reason || r.count == 0 {
				continue
			}
			hit, left, ok := b.pick(refs, r)
			if !ok {
				return finding{}, false
			}
			refs = left
			f.hidden = f.hidden || r.of > 0 && r.of != b.lines
			if lines := b.choose(hit); r.reason == metadataOff {
				f.off = lines
			} else {
				f.refused = append(f.refused, refusedLines{r.reason, lines})
			}
			r.count = 0
		}
	}
	if len(refs) > 0 {
		f.rest = b.choose(refs)
	}
	return f, true
}

// pick divides refs into those that r speaks of and the others.
func (b *batch) pick(refs []ref, r *refusal) (hit, left []ref, ok bool) {
	second := int64(time.Second)
	byTime := func(a, b ref) int { return a.entry.Timestamp.Compare(b.entry.Timestamp) }
	ns := func(r ref) int64 { return r.entry.Timestamp.UnixNano() }
	switch r.reason {
	case refusedTooOld, refusedBehind: // the oldest are refused, up to a bound that is told in whole seconds
		if r.count > len(refs) || r.reason == refusedBehind && len(b.parts) > 1 {
			return nil, nil, false
		}
		refs = slices.Clone(refs)
		slices.SortStableFunc(refs, byTime)
		hit, left = refs[:r.count], refs[r.count:]
		ok = r.bound != 0 && ns(hit[len(hit)-1]) < r.bound+second && (len(left) == 0 || ns(left[0]) >= r.bound)
		return hit, left, ok
	case refusedTooNew:
		if r.count > len(refs) {
			return nil, nil, false
		}
		refs = slices.Clone(refs)
		slices.SortStableFunc(refs, byTime)
		n := len(refs) - r.count
		hit, left = refs[n:], refs[:n]
		ok = r.bound != 0 && ns(hit[0]) >= r.bound && ns(hit[0]) < r.bound+second
		return hit, left, ok
	case refusedLabels:
		return refs, nil, len(b.parts) == 1
	}
	for _, x := range refs {
		e, bad := x.entry, true
		switch r.reason {
		case refusedTooLong:
			bad = int64(len(e.Line)) > r.limit
		case metadataOff:
			bad = len(e.StructuredMetadata) > 0
		case refusedMetadata:
			bad = !r.number && metadataBytes(e) > r.limit || r.number && int64(len(e.StructuredMetadata)) > r.limit
		}
		if bad {
			hit = append(hit, x)
		} else {
			left = append(left, x)
		}
	}
	return hit, left, len(hit) == r.count
}

// metadataBytes is what Loki's limit counts.
func metadataBytes(e *push.Entry) int64 {
	n := 0
	for _, m := range e.StructuredMetadata {
		n += len(m.Name) + len(m.Value)
	}
	return int64(n)
}

// choose makes a batch of some entries of b, in the order of b.
func (b *batch) choose(refs []ref) *batch {
	slices.SortStableFunc(refs, func(x, y ref) int {
		return cmp.Or(cmp.Compare(x.part, y.part), x.entry.Timestamp.Compare(y.entry.Timestamp))
	})
	var parts []part
	for i, x := range refs {
		if i == 0 || refs[i-1].part != x.part {
			parts = append(parts, part{labels: b.parts[x.part].labels})
		}
		p := &parts[len(parts)-1]
		p.entries = append(p.entries, *x.entry)
	}
	return b.with(parts)
}
