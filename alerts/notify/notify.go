// Package notify sends Alerts to where people are told: Alertmanager, a webhook, standard output.
//
// A kind sends one batch and says whether it arrived. The Dispatcher around it does the rest: a goroutine for each
// peer, retries, re-sending, metrics and the last attempt when the daemon stops. Nothing here ever blocks the
// detectors. What each peer is owed and was told is in the Outbox, on disk.
//
// Delivery is at least once. Alertmanager merges repeats: the same labels and startsAt are the same alert. For a
// webhook and standard output one repeat is possible, when squall is killed between the receiver's answer and the
// note of it on disk; a webhook's repeat has the fingerprint, the startsAt and the Idempotency-Key of the first.
package notify

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/squall-sre/squall/alerts"
)

// Runtime is what a kind is given besides its configuration.
type Runtime struct {
	Name        string           // of this notifier, in metrics and messages; default: its type
	ExternalURL string           // where squall's own page is reached; "" leaves links out
	Now         func() time.Time // wall clock
	// Elapsed is the time since the program began, by a clock that is never set. nil: by Now's monotonic reading.
	Elapsed func() time.Duration
	Stdout  io.Writer // where the stdout kind writes
}

// A Peer is one place to send to, with a queue of its own.
type Peer struct {
	Name     string // bounded: from the configuration, without credentials
	Group    string // the notifier it is a peer of: what one of them took is delivered. "": Name
	Key      string // by which what it is owed is found again after a restart; it names the receiver, and no secret. "": Name
	Notifier alerts.Notifier
	// Skew is how far the peer's clock is ahead of ours, as of its last answer; nil where it tells none.
	Skew func() time.Duration
}

// kinds is the family of notifiers.
var kinds = map[string]func(decode func(any) error, rt Runtime) ([]Peer, error){
	"alertmanager": newAlertmanager,
	"stdout":       newStdout,
	"webhook":      newWebhook,
}

// Kinds lists the types of notifiers, sorted.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// New builds the notifier that one mapping under notify describes, as its peers: Alertmanager is one for each
// address, since the instances of a cluster do not share what they are sent. decode strictly decodes the mapping.
func New(decode func(any) error, rt Runtime) ([]Peer, error) {
	var mapping map[string]any
	if err := decode(&mapping); err != nil {
		return nil, err
	}
	kind, _ := mapping["type"].(string)
	build, ok := kinds[kind]
	if !ok {
		return nil, fmt.Errorf("type %q is not a notifier: use one of %s", kind, strings.Join(Kinds(), ", "))
	}
	if rt.Name == "" {
		rt.Name = kind
	}
	if rt.Now == nil {
		return nil, fmt.Errorf("notifier %s: no clock was handed in", rt.Name)
	}
	if rt.Elapsed == nil {
		start := rt.Now()
		rt.Elapsed = func() time.Duration { return rt.Now().Sub(start) }
	}
	return build(decode, rt)
}

// key names a receiver by its address without telling it.
func key(kind, address string) string {
	sum := sha256.Sum256([]byte(kind + " " + address))
	return kind + "-" + hex.EncodeToString(sum[:8])
}

// identity is what makes two alerts one for a receiver.
func identity(a *alerts.Alert) string {
	return a.Name + "\x00" + string(a.Severity) + "\x00" + a.Labels.String()
}

// maxLabel bounds a label's value, in bytes.
const maxLabel = 256

// labels are an alert's labels as a receiver gets them: names that every version accepts, no empty values, and
// nothing that a value could hide.
func labels(a *alerts.Alert) map[string]string {
	out := map[string]string{}
	set := func(name, value string) {
		if len(value) > maxLabel {
			value = value[:maxLabel]
			for !utf8.ValidString(value) && len(value) > maxLabel-utf8.UTFMax {
				value = value[:len(value)-1] // a character was cut
			}
		}
		if value = alerts.Escape(value); value != "" {
			out[labelName(name)] = value
		}
	}
	for _, l := range a.Labels {
		set(l.Name, l.Value)
	}
	set("alertname", a.Name)
	set("severity", string(a.Severity))
	return out
}

// labelName replaces what is not allowed in a label's name.
func labelName(name string) string {
	b := []byte(name)
	for i, c := range b {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (c < '0' || c > '9') {
			b[i] = '_'
		}
	}
	if len(b) == 0 || b[0] >= '0' && b[0] <= '9' {
		return "_" + string(b)
	}
	return string(b)
}
