package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/alerts/notify"
	"github.com/squall-sre/squall/pipeline/fleet"
)

// A loneSender tells the receivers that would take equal alerts of two aggregators for two: one aggregator at a time
// tells them, and what they were told and are owed lies with the fleet's servers. When it dies, another goes on.
type loneSender struct {
	server *server
	link   *fleet.Link

	mu     sync.Mutex
	peers  []notify.Peer
	recent []news // of the last while: what whoever told before may not have told any more
	sender *notify.Dispatcher
	stop   context.CancelFunc // ends the sender
}

// news is what one pane changed.
type news struct {
	at                  int64
	active, transitions []alerts.Alert
}

const (
	loneLease = 10 * time.Second
	loneKept  = int64(15 * time.Minute) // ns: of news
)

func newLoneSender(s *server, link *fleet.Link) *loneSender {
	return &loneSender{server: s, link: link}
}

// part takes its own out of the receivers, and gives the others. Standard output belongs to each process.
func (l *loneSender) part(peers []notify.Peer) (others []notify.Peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peers = nil
	if l.stop != nil {
		l.stop() // it begins anew with the new receivers
	}
	for _, p := range peers {
		if p.Notifier.Resend() == 0 && p.Key != "stdout" {
			l.peers = append(l.peers, p)
		} else {
			others = append(others, p)
		}
	}
	return others
}

// update takes over what fires, and what began or ended.
func (l *loneSender) update(at int64, active, transitions []alerts.Alert) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recent = append(l.recent, news{at, active, transitions})
	l.recent = slices.DeleteFunc(l.recent, func(n news) bool { return n.at < at-loneKept })
	if l.sender != nil {
		l.sender.Update(at, active, transitions)
	}
}

// run tells whenever this process is the one to tell, until ctx ends.
func (l *loneSender) run(ctx context.Context) error {
	for ctx.Err() == nil {
		l.mu.Lock()
		none := len(l.peers) == 0
		l.mu.Unlock()
		if !none {
			if err := l.link.Lease(ctx, "notify", loneLease, l.held); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return ctx.Err()
}

// leased sends only while the lease is surely held. A process that was stopped and goes on has not noticed yet that it is
// not: its context, which looks at the clock when it is asked, tells.
type leased struct {
	alerts.Notifier
	lease context.Context //nolint:containedctx // it is the lease
}

// Notify implements alerts.Notifier.
func (n leased) Notify(ctx context.Context, batch []alerts.Alert) error {
	if err := n.lease.Err(); err != nil {
		return fmt.Errorf("the lease is not held any more: %w", err)
	}
	return n.Notifier.Notify(ctx, batch)
}

func (l *loneSender) held(ctx context.Context) {
	log := l.server.log.Named("fleet")
	kv, err := l.link.Blobs(ctx, "outbox")
	var outbox *notify.Outbox
	if err == nil {
		outbox, err = notify.OpenOutbox(ctx, kv, log)
	}
	if err != nil {
		log.Error("what receivers were told is not known: another aggregator may tell them", zap.Error(err))
		return
	}
	log.Info("this aggregator tells the receivers that one of all is to tell")
	lease := ctx
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	l.mu.Lock()
	peers := slices.Clone(l.peers)
	for i := range peers {
		peers[i].Notifier = leased{peers[i].Notifier, lease}
	}
	sender := notify.NewDispatcher(notify.Config{
		Peers: peers, Outbox: outbox, Logger: log, Registerer: prometheus.NewRegistry(), Now: time.Now, Drain: stopGrace,
	})
	for _, n := range l.recent {
		sender.Update(n.at, n.active, n.transitions)
	}
	l.sender, l.stop = sender, stop
	l.mu.Unlock()
	if err := sender.Run(ctx); err != nil {
		log.Warn("what receivers are owed is not kept", zap.Error(err))
	}
	l.mu.Lock()
	l.sender, l.stop = nil, nil
	l.mu.Unlock()
}
