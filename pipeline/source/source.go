// Package source reads lines: from files that rotate, from containers' logs, from the journal, from sockets, from
// standard input.
//
// A Source turns what it reads into Blocks of whole lines, each with its exact place in its Stream. For files
// a Stream is one generation of the file: one inode from its first byte to its last, whatever its name is
// meanwhile. How a line gets from a file into a Block is told by four functions, in this order: look
// (look.go) finds generations, turn (turn.go) reads one of them, cutter.took (cut.go) makes Blocks, follow
// (follow.go) stays at the end of a file that grows slowly.
package source

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

// A Source is a pipeline.Source that also shows its configuration and its condition.
type Source interface {
	pipeline.Source
	// Common gives the part of the configuration that every source has, defaults filled in.
	Common() Common
	// States tells about each path or stream, sorted by path. It is safe to call at any time.
	States() []pipeline.InputState
}

// Common is the configuration that every kind of source has.
type Common struct {
	Name     string            `yaml:"name"`
	Type     string            `yaml:"type"`
	Format   any               `yaml:"format"` // a format's name, or a mapping with the key type
	Site     string            `yaml:"site"`
	Timezone string            `yaml:"timezone"` // for formats that log no zone; "": the global setting
	Lateness time.Duration     `yaml:"lateness"` // how far behind the newest line a line may come
	Labels   map[string]string `yaml:"labels"`
}

// A Runtime is what a source is given to work with.
type Runtime struct {
	Name        string // the input's name when configuration gives none
	Logger      *zap.Logger
	Metrics     *Metrics         // shared by all sources of a process
	Now         func() time.Time // for how long something has been so, and when a message came; never for lines that can be read again
	Poll        time.Duration    // between two looks at the file system; 0: 250 ms
	Stdin       io.Reader        // for the kind stdin
	Descriptors *Descriptors     // shared by all sources of a process; nil: without a limit
}

const defaultPoll = 250 * time.Millisecond

// A kind is how a source is made, and what it reads in the words of the README.
type kind struct {
	new   func(decode func(any) error, rt Runtime) (Source, error)
	reads string
}

// kinds is the family's table.
var kinds = map[string]kind{
	"file":       {newFile, "files by globs; rotation by rename and copytruncate, compressed siblings to catch up"},
	"container":  {newContainer, "/var/log/pods in CRI or Docker framing, parts joined, names from the path"},
	"journal":    {newJournal, "units of journald, by journalctl, from the saved cursor"},
	"stdin":      {newStdin, "a pipe, to its end"},
	"s3":         {newS3, "what AWS delivers to a bucket, listed or announced by SQS"},
	"syslog":     {newSyslog, "a listener on UDP or TCP, RFC 3164 and 5424: for HAProxy"},
	"kubernetes": {newKubernetes, "pods and events of a cluster by its API: restarts with their reasons (deploy/kubernetes/rbac.yaml)"},
}

// Kinds lists the kinds of source, sorted.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// Reads tells what a kind of source reads, in a few words; "" for no kind.
func Reads(name string) string { return kinds[name].reads }

// New builds the source that one mapping under sources describes. decode strictly decodes that mapping.
func New(decode func(any) error, rt Runtime) (Source, error) {
	var mapping map[string]any
	if err := decode(&mapping); err != nil {
		return nil, err
	}
	name, _ := mapping["type"].(string)
	k, ok := kinds[name]
	if !ok {
		return nil, fmt.Errorf("type %q is not a source: use one of %s", name,
			strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	}
	if rt.Poll <= 0 {
		rt.Poll = defaultPoll
	}
	return k.new(decode, rt)
}

func defaultCommon(rt Runtime) Common {
	return Common{Name: rt.Name, Format: "auto", Lateness: 5 * time.Second}
}

// maxLabels bounds the static labels of an input: each becomes a label of every Loki stream.
const maxLabels = 16

func (c *Common) check() error {
	switch {
	case c.Name == "":
		return fmt.Errorf("name is empty")
	case c.Lateness < 0:
		return fmt.Errorf("lateness %s is negative", c.Lateness)
	case len(c.Labels) > maxLabels:
		return fmt.Errorf("%d labels: at most %d", len(c.Labels), maxLabels)
	}
	if _, err := pipeline.ParseZone(c.Timezone); err != nil {
		return fmt.Errorf("timezone: %w", err)
	}
	return nil
}
