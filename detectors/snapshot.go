package detectors

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"maps"
	"slices"

	"github.com/squall-sre/squall/detectors/pane"
)

// snapshot is what an Engine knows beyond the panes that can be read again.
type snapshot struct {
	At        int64
	Episodes  []savedEpisode
	Incidents map[string]int64   // the start of each incident's view, ns
	Wrong     map[int64][]string // by the start of a pane that waits to be learned
	Baselines *Baselines
	Onsets    []savedOnsets
	Listening map[string]*listening
	Silences  []Silence // over
	Pools     learnedPools
}

type savedEpisode struct {
	Detection Detection
	Worst     Evidence
}

// savedOnsets is when the last episodes of one key began, ns.
type savedOnsets struct {
	Detector, Labels string
	Onsets           []int64
}

// Snapshot encodes the engine's state as of the last closed pane. It is read back by Restore of the same
// version and configuration.
func (e *Engine) Snapshot() ([]byte, error) {
	s := snapshot{
		At: e.at, Incidents: map[string]int64{}, Wrong: map[int64][]string{}, Baselines: e.baselines,
		Listening: e.listener.sources, Silences: e.listener.over, Pools: e.learned,
	}
	for _, key := range slices.SortedFunc(maps.Keys(e.episodes), compareEpisodes) {
		s.Episodes = append(s.Episodes, savedEpisode{e.episodes[key].detection, e.episodes[key].worst})
	}
	for site, view := range e.incidents {
		s.Incidents[site] = view.Start
	}
	for _, l := range e.learning {
		s.Wrong[l.pane.Start] = slices.Sorted(maps.Keys(l.wrong))
	}
	for _, key := range slices.SortedFunc(maps.Keys(e.onsets), compareEpisodes) {
		s.Onsets = append(s.Onsets, savedOnsets{key.detector, key.labels, e.onsets[key]})
	}
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(s); err != nil {
		return nil, fmt.Errorf("encode the engine's state: %w", err)
	}
	return b.Bytes(), nil
}

// Restore sets a new engine to a snapshot. It returns until when panes were evaluated (at, ns) and from when
// panes have to be given to Preload before the first Close (from, ns).
func (e *Engine) Restore(data []byte) (at, from int64, err error) {
	var s snapshot
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&s); err != nil {
		return 0, 0, fmt.Errorf("decode the engine's state: %w", err)
	}
	e.at, e.wrong = s.At, s.Wrong
	if s.Baselines != nil && s.Baselines.Sites != nil {
		e.baselines = s.Baselines
		e.baselines.resume()
	}
	if s.Listening != nil {
		e.listener.sources, e.listener.over = s.Listening, s.Silences
	}
	if s.Pools != nil {
		e.learned = s.Pools
	}
	for _, saved := range s.Onsets {
		e.onsets[episodeKey{saved.Detector, saved.Labels}] = saved.Onsets
	}
	for _, saved := range s.Episodes {
		d := saved.Detection
		i := slices.IndexFunc(e.detectors, func(r *runner) bool { return r.name == d.Detector })
		if i < 0 {
			continue // the detector is configured no more: its episode ends with it
		}
		by := e.detectors[i].all
		if own := e.detectors[i].sites[d.Labels.Get("site")]; own != nil {
			by = own
		}
		e.episodes[episodeKey{d.Detector, d.Labels.String()}] = &episode{detection: d, by: by, worst: saved.Worst}
	}
	from = e.at - max(e.keep, learnAfter*e.pane)
	for site, start := range s.Incidents {
		e.incidents[site] = &pane.Pane{Start: start, End: start, Sites: map[string]*pane.Site{}}
		from = min(from, start)
	}
	return e.at, from, nil
}

// Preload takes a pane that was evaluated before the snapshot: it fills the windows, the incidents and the
// queue of lessons.
func (e *Engine) Preload(p *pane.Pane) {
	e.push(p)
	for site, view := range e.incidents {
		if p.Start >= view.Start {
			e.grow(site, view, p)
		}
	}
	if names, waiting := e.wrong[p.Start]; waiting {
		l := lesson{pane: p, wrong: map[string]bool{}}
		for _, name := range names {
			l.wrong[name] = true
		}
		e.learning = append(e.learning, l)
	}
}
