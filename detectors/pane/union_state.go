package pane

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"math"
)

// unionState is what a Union must remember over a restart. Of the reports it holds the carrier's numbers alone: there
// they are read again.
type unionState struct {
	Members map[string]*member
	Now     int64
	Since   int64
	Back    int64
	Seq     uint64
	Started bool
	Next    int64
	Empty   int
	Leads   []lead
	Marks   []mark
	Open    uint64 // the first report of a pane that waits; 0 for none
	Pending Coverage
}

// Snapshot writes the state, in a form that Restore reads.
func (u *Union) Snapshot() ([]byte, error) {
	s := unionState{u.members, u.now, u.since, u.back, u.seq, u.started, u.next, u.empty, u.leads, u.marks, 0, u.pending}
	for _, g := range u.open {
		if s.Open == 0 || g.first < s.Open {
			s.Open = g.first
		}
	}
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(s); err != nil {
		return nil, fmt.Errorf("write the state of the fleet's panes: %w", err)
	}
	return b.Bytes(), nil
}

// Restore sets a new Union to a snapshot. Then the reports are to be read again, by Recall, from the number that it
// returns up to that of the snapshot, Seq: those of panes that wait, and of panes that were handed out and end after
// from, in ns. Recalled ends that.
func (u *Union) Restore(state []byte, from int64) (seq uint64, err error) {
	var s unionState
	if err := gob.NewDecoder(bytes.NewReader(state)).Decode(&s); err != nil {
		return 0, fmt.Errorf("read the state of the fleet's panes: %w", err)
	}
	u.now, u.since, u.back, u.seq, u.started, u.next = s.Now, s.Since, s.Back, s.Seq, s.Started, s.Next
	u.empty, u.leads, u.marks, u.pending = s.Empty, s.Leads, s.Marks, s.Pending
	for name, m := range s.Members {
		u.know(name, m)
	}
	u.past = map[int64]*gathering{}
	seq = u.seq + 1
	if s.Open > 0 {
		seq = min(seq, s.Open)
	}
	for _, m := range u.marks {
		if m.Start+u.length > from {
			seq = min(seq, m.From)
			u.past[m.Start] = newGathering(m.Start, m.Start+u.length, m.From)
		}
	}
	return seq, nil
}

// Recall takes a report that was taken before the snapshot.
func (u *Union) Recall(node string, r *Report, seq uint64) {
	if r.Done || u.refuses(r, math.MaxInt64/2) != "" {
		return
	}
	if !u.started || r.Start >= u.next {
		now := u.seq
		u.seq = seq
		u.keep(node, r)
		u.seq = now
		return
	}
	g := u.past[r.Start]
	if g == nil {
		return
	}
	for _, m := range u.marks {
		if m.Start == r.Start && seq <= m.Through {
			g.put(node, r)
		}
	}
}

// Recalled hands out the panes again that were handed out before the snapshot, as they were, in order.
func (u *Union) Recalled(each func(p *Pane)) {
	for _, m := range u.marks {
		g := u.past[m.Start]
		if g == nil {
			continue
		}
		p, _ := g.sum(&u.cfg.Caps)
		p.Coverage.Absent = uint64(m.Absent)
		each(p)
		delete(u.past, m.Start)
	}
	u.past = nil
}
