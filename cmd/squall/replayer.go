package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/enrich"
	"github.com/squall-sre/squall/pipeline/format"
	"github.com/squall-sre/squall/pipeline/source"
)

// replayer merges the lines of many files by event time into one judge.
type replayer struct {
	judge   *judge
	chain   *enrich.Chain
	format  formatChoice
	zone    *time.Location
	site    string
	stderr  io.Writer
	within  eventRange
	advance *advance
	before  uint64 // lines before the range: they taught what is usual

	slots   []int // the assembler's sources that no file uses now
	waiting int   // the assembler's source that stands for the files not yet opened

	mu     sync.Mutex
	edge   bool             // there are files of a layer in front of the origin: a CDN's log, a firewall's
	unread map[string]error // what could not be read to its end, by path: the rest counts all the same
}

// replayMaxOpen is how many panes a replay may hold open: what is in no order of time (a list of pods) holds the
// watermark back until it is read.
const replayMaxOpen = 1 << 16

func newReplayer(c *Config, f formatChoice, site string, stderr io.Writer) (*replayer, error) {
	j, err := newJudge(c, nil, replayMaxOpen)
	if err != nil {
		return nil, err
	}
	chain, err := newChain(c, nil)
	if err != nil {
		return nil, err
	}
	j.label = "replay"
	return &replayer{
		judge: j, chain: chain, format: f, zone: c.Timezone.Location, site: site, stderr: stderr, within: always,
		advance: &advance{}, unread: map[string]error{},
	}, nil
}

// damaged notes that a file cannot be read, or not to its end.
func (r *replayer) damaged(path string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unread[path] = err
}

// whole is nil when every file was read to its end.
func (r *replayer) whole() error {
	var all []error
	for _, path := range slices.Sorted(maps.Keys(r.unread)) {
		all = append(all, fmt.Errorf("replay %s: %w", path, r.unread[path]))
	}
	return errors.Join(all...)
}

// blind is the error of lines of which none was understood: silence about them is no quiet day.
func (r *replayer) blind() error {
	t := &r.judge.total
	failed := uint64(0)
	for _, n := range t.failed {
		failed += n
	}
	if t.parsed > 0 || failed == 0 {
		return nil
	}
	return fmt.Errorf("none of %d lines fits the format: nothing was detected (squall explain LINE tells why)", failed)
}

// A track is one file on its way through the road.
type track struct {
	path     string
	log      string        // the log that the file is a part of
	first    int64         // ns: the time of its first line; the least int64 where it has none or no order
	lateness time.Duration // how far behind its newest line a line may come
	slot     int           // the assembler's source
	head     *pipeline.Work
	work     chan *pipeline.Work
}

// at is the time by which the track waits for its turn.
func (t *track) at() int64 {
	if t.first == math.MinInt64 {
		return t.first
	}
	for i := range t.head.Items {
		if at := t.head.Items[i].Time; at != 0 {
			return at
		}
	}
	return t.first
}

// run reads all paths to their end and evaluates all their panes.
func (r *replayer) run(ctx context.Context, paths []string, stdin io.Reader) error {
	files, err := source.Expand(paths)
	if err != nil {
		return err
	}
	tracks, err := r.peek(ctx, files)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.merge(ctx, g, tracks, stdin) })
	if err := g.Wait(); err != nil {
		return err
	}
	r.judge.panes.Flush()
	r.judge.settle()
	return nil
}

// Bounds of the files that are open at once.
const (
	maxTracks  = 256     // those over it wait, and the watermark before their first lines
	readAhead  = 8 << 20 // bytes of all of them together that are read and not yet judged
	leastPiece = 64 << 10
	mostPiece  = 128 << 10
)

// merge takes the work of all files in the order of its time. Files are opened when their time has come, so that
// a month of five-minute objects needs no month of descriptors.
func (r *replayer) merge(ctx context.Context, g *errgroup.Group, tracks []*track, stdin io.Reader) error {
	r.waiting = r.judge.source("", 0)
	for _, t := range tracks {
		r.judge.panes.Await(t.log, 1)
	}
	var active []*track
	for {
		for len(tracks) > 0 && len(active) < maxTracks && (len(active) == 0 || tracks[0].first <= active[0].at()) {
			t := tracks[0]
			tracks = tracks[1:]
			r.start(ctx, g, t, stdin, min(max(readAhead/(len(active)+1), leastPiece), mostPiece))
			r.await(tracks)
			if r.next(ctx, t) {
				active = append(active, t)
			}
			sortTracks(active)
		}
		if len(active) == 0 {
			return ctx.Err()
		}
		t := active[0]
		r.take(t.head)
		if !r.next(ctx, t) {
			active = active[1:]
		}
		sortTracks(active)
	}
}

// take judges what of the work falls into the range.
func (r *replayer) take(w *pipeline.Work) {
	r.before += r.within.cut(w)
	r.judge.take(w)
	r.advance.at.Store(r.judge.closed)
}

func sortTracks(tracks []*track) {
	slices.SortStableFunc(tracks, func(a, b *track) int { return cmp.Compare(a.at(), b.at()) })
}

// await keeps the watermark before the first line of the files that are still to be opened.
func (r *replayer) await(tracks []*track) {
	switch {
	case len(tracks) == 0:
		r.judge.panes.Done(r.waiting)
	case tracks[0].first != math.MinInt64:
		r.judge.panes.Observe(r.waiting, tracks[0].first-int64(tracks[0].lateness))
	}
}

// errBeyond ends the reading of a file: all that follows was logged after the range.
var errBeyond = errors.New("the rest is of later")

// start gives the track a source of the assembler and reads its file in a goroutine of the group.
func (r *replayer) start(ctx context.Context, g *errgroup.Group, t *track, stdin io.Reader, piece int) {
	if n := len(r.slots); n > 0 {
		t.slot, r.slots = r.slots[n-1], r.slots[:n-1]
		r.judge.panes.Reuse(t.slot, t.log, t.lateness)
	} else {
		t.slot = r.judge.panes.Source(t.log, t.lateness)
	}
	r.judge.sources[t.path] = t.slot
	t.work = make(chan *pipeline.Work, 2)
	g.Go(func() error {
		defer close(t.work)
		err := r.read(ctx, t.path, stdin, piece, func(w *pipeline.Work) error {
			if t.beyond(w, r.within) {
				return errBeyond
			}
			select {
			case t.work <- w:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if errors.Is(err, errBeyond) {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			r.damaged(t.path, err)
			return nil
		}
		return err
	})
}

// beyond tells that neither the work nor what follows it in the file falls into the range.
func (t *track) beyond(w *pipeline.Work, within eventRange) bool {
	for i := range w.Items {
		if at := w.Items[i].Time; at != 0 {
			return t.lateness < math.MaxInt64/4 && within.beyond(at-int64(t.lateness))
		}
	}
	return false
}

// next waits for the track's next work; at its end the track is over.
func (r *replayer) next(ctx context.Context, t *track) bool {
	select {
	case w, more := <-t.work:
		if more {
			t.head = w
			return true
		}
	case <-ctx.Done():
	}
	t.head = nil // the road with its spare memory is gone with the last work
	r.judge.panes.Done(t.slot)
	delete(r.judge.sources, t.path)
	r.slots = append(r.slots, t.slot)
	return false
}

// read takes one file, or standard input, down a road.
func (r *replayer) read(ctx context.Context, path string, stdin io.Reader, piece int, take func(*pipeline.Work) error) error {
	in := io.NopCloser(io.Reader(countedReader{stdin, &r.advance.read}))
	if path != "-" {
		var err error
		if in, err = source.OpenCounted(path, &r.advance.read); err != nil {
			return err
		}
		in = source.Ahead(in, piece)
	}
	defer in.Close() // it was only read
	road := pipeline.NewRoad(pipeline.RoadConfig{
		Input: path, Open: opener{format: r.format, zone: r.zone}.open, Enricher: r.chain.For(r.site), Take: take,
	})
	return source.ReadPieces(ctx, &pipeline.Stream{Input: path, ID: path, Path: path}, in, piece, road.Emit)
}

// countedReader adds up what is read.
type countedReader struct {
	io.Reader
	read *atomic.Int64
}

func (c countedReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// peekBytes is how much of a file is read to learn when it begins and what it is.
const peekBytes = 64 << 10

// peekPiece is how much of that is parsed at once, until a line has a time: mostly the first has.
const peekPiece = 4 << 10

// lateDelivery is how far out of order the objects of clouds are: one of five minutes holds the lines of many nodes.
const lateDelivery = 10 * time.Minute

// latenessOfFormat holds the formats that are delivered out of order.
var latenessOfFormat = map[string]time.Duration{
	"alb": lateDelivery, "elb_classic": lateDelivery, "aws_waf": lateDelivery, "azure_appgw_json": lateDelivery,
	"cloudfront": lateDelivery, "cloudfront_json": lateDelivery, "cloudfront_tsv": lateDelivery, "gcp_lb_json": lateDelivery,
}

// unordered are the formats whose lines are in no order of time: they are read whole before all others.
var unordered = map[string]bool{"pod_status": true, "k8s_event": true, "k8s_event_json": true, "kubernetes": true}

// peek opens each file once: for its first time, and to leave out what was delivered twice.
func (r *replayer) peek(ctx context.Context, files []string) ([]*track, error) {
	seen := map[uint64][]string{} // paths, by what they begin with
	var tracks []*track
	r.advance.files.Store(int64(len(files)))
	for i, path := range files {
		r.advance.looked.Store(int64(i))
		t := &track{path: path, log: logOf(path), first: math.MinInt64, lateness: defaultLateness}
		if path != "-" {
			head, err := beginning(path)
			if err != nil {
				r.damaged(path, err)
				continue
			}
			begins := xxhash.Sum64(head)
			if i := slices.IndexFunc(seen[begins], func(other string) bool { return sameContent(ctx, path, other) }); i >= 0 {
				fmt.Fprintf(r.stderr, "%s is the same object as %s: it counts once\n", path, seen[begins][i])
				continue
			}
			if len(head) > 0 {
				seen[begins] = append(seen[begins], path)
			}
			if err := r.peekInto(ctx, t, head); err != nil {
				if ctx.Err() != nil {
					return nil, err
				}
				r.damaged(path, err)
				continue
			}
			if t.first != math.MinInt64 && r.within.beyond(t.first-int64(t.lateness)) {
				continue
			}
			if info, err := os.Stat(path); err == nil {
				r.advance.total.Add(info.Size())
			}
		}
		tracks = append(tracks, t)
	}
	if slices.Contains(files, "-") {
		r.advance.total.Store(0) // nobody knows
	}
	slices.SortStableFunc(tracks, func(a, b *track) int { return cmp.Compare(a.first, b.first) })
	return tracks, nil
}

// beginning is the first content of a file, unpacked.
func beginning(path string) ([]byte, error) {
	in, err := source.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close() // it was only read
	head := make([]byte, peekBytes)
	n, err := io.ReadFull(in, head)
	if n == 0 && err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return head[:n], nil
}

// sameContent tells whether two files hold the same bytes to the last, packed or not. It is asked of files that begin
// alike, and reads them until they differ. What cannot be read to its end is like nothing.
func sameContent(ctx context.Context, a, b string) bool {
	var in [2]io.ReadCloser
	var part [2][]byte
	for i, path := range []string{a, b} {
		file, err := source.Open(path)
		if err != nil {
			return false
		}
		defer file.Close() // it was only read
		in[i], part[i] = file, make([]byte, peekBytes)
	}
	for ctx.Err() == nil {
		var n [2]int
		var ended [2]bool
		for i := range in {
			var err error
			n[i], err = io.ReadFull(in[i], part[i])
			ended[i] = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && n[i] < peekBytes
			if err != nil && !ended[i] {
				return false
			}
		}
		if !bytes.Equal(part[0][:n[0]], part[1][:n[1]]) || ended[0] != ended[1] {
			return false
		}
		if ended[0] {
			return true
		}
	}
	return false
}

// rotation is what logrotate, and whoever packs, put behind a log's name.
var rotation = regexp.MustCompile(`(?:[.-]\d{1,4}|[.-]\d{8}(?:[.-]\d+)?)?(?:\.(?:gz|zst|bz2))?$`)

// logOf is the name of the log that a file is a part of: a rotated file and the one that replaced it are one log.
func logOf(path string) string {
	if path == "-" {
		return "standard input"
	}
	base := filepath.Base(path)
	return cmp.Or(base[:rotation.FindStringIndex(base)[0]], base)
}

var errPeeked = errors.New("enough was seen")

// peekInto learns the first time and the format of a file from its beginning.
func (r *replayer) peekInto(ctx context.Context, t *track, head []byte) error {
	name := r.format.name
	o := opener{format: r.format, zone: r.zone}
	var chosen pipeline.Format
	var failed []byte
	o.opened = func(_ *pipeline.Stream, f pipeline.Format) { chosen = f }
	road := pipeline.NewRoad(pipeline.RoadConfig{
		Input: t.path, Open: o.open, Enricher: r.chain.For(r.site),
		Take: func(w *pipeline.Work) error {
			if failed == nil {
				failed = bytes.Clone(failedLine(w.Items))
			}
			r.edge = r.edge || slices.ContainsFunc(w.Items, func(it pipeline.Item) bool { return it.Record.Edge })
			for i := range w.Items {
				if at := w.Items[i].Time; at != 0 {
					t.first = at
					return errPeeked
				}
			}
			w.Release()
			return nil
		},
	})
	stream := &pipeline.Stream{Input: t.path, ID: t.path, Path: t.path}
	err := source.ReadPieces(ctx, stream, bytes.NewReader(head), peekPiece, road.Emit)
	if err != nil && !errors.Is(err, errPeeked) {
		return err
	}
	if text := misfit(t.path, chosen, failed); text != "" {
		fmt.Fprintln(r.stderr, text)
	}
	if c, ok := chosen.(*format.Auto); ok {
		name, _ = c.Choice()
	}
	if d, ok := latenessOfFormat[name]; ok {
		t.lateness = d
	}
	if latenessOfFormat[name] == lateDelivery { // one log in many objects, whose names tell of nodes and times
		t.log = name
	}
	if unordered[name] {
		t.first, t.lateness = math.MinInt64, math.MaxInt64/4
	}
	return nil
}
