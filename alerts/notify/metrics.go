package notify

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The reasons why a transition is not told.
const (
	droppedFull    = "full"    // more is owed than is kept
	droppedRefused = "refused" // no retry cures it
)

type metrics struct {
	sent        *prometheus.CounterVec
	failed      *prometheus.CounterVec
	dropped     *prometheus.CounterVec
	owed        *prometheus.GaugeVec
	undelivered *prometheus.GaugeVec
	success     *prometheus.GaugeVec
	skew        *prometheus.GaugeVec

	mu    sync.Mutex
	skews map[string]time.Duration
}

func newMetrics(reg prometheus.Registerer, peers []Peer) *metrics {
	with, one := promauto.With(reg), []string{"notifier"}
	m := &metrics{
		skews: map[string]time.Duration{},
		sent: with.NewCounterVec(prometheus.CounterOpts{
			Name: "squall_notify_alerts_sent_total", Help: "Alerts that a receiver took, re-sent ones included.",
		}, one),
		failed: with.NewCounterVec(prometheus.CounterOpts{
			Name: "squall_notify_failures_total", Help: "Attempts to send that failed, by reason.",
		}, []string{"notifier", "reason"}),
		dropped: with.NewCounterVec(prometheus.CounterOpts{
			Name: "squall_notify_alerts_dropped_total", Help: "Transitions that a receiver will not be told, by reason: it refused them, or is owed too many.",
		}, []string{"notifier", "reason"}),
		owed: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "squall_notify_owed_alerts", Help: "Beginnings and ends of alerts that a receiver was not told yet.",
		}, one),
		undelivered: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "squall_notify_undelivered_alerts", Help: "The same for a notifier as a whole: what one of its receivers took is delivered.",
		}, one),
		success: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "squall_notify_last_success_timestamp_seconds", Help: "When a receiver last took alerts; 0: never.",
		}, one),
		skew: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "squall_notify_clock_skew_seconds", Help: "How far a receiver's clock is ahead, when over 30 s.",
		}, one),
	}
	for _, p := range peers {
		m.sent.WithLabelValues(p.Name)
		m.undelivered.WithLabelValues(p.Group)
		for _, v := range []*prometheus.GaugeVec{m.owed, m.success, m.skew} {
			v.WithLabelValues(p.Name)
		}
		for _, reason := range []string{droppedFull, droppedRefused} {
			m.dropped.WithLabelValues(p.Name, reason)
		}
		for _, reason := range []string{reasonRefused, reasonTurnedAway, reasonTimeout, reasonUnavailable} {
			m.failed.WithLabelValues(p.Name, reason)
		}
	}
	return m
}

// setSkew returns the skew that was known before.
func (m *metrics) setSkew(peer string, skew time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.skews[peer]
	m.skews[peer] = skew
	m.skew.WithLabelValues(peer).Set(skew.Seconds())
	return old
}
