package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/detectors"
)

// The layers whose timeouts are told apart, from the inside out: each must give up before the one around it does.
const (
	layerWorker  = "worker"
	layerProxy   = "proxy"
	layerClient  = "client"
	layerUnknown = "undetermined"
)

var layersOut = []string{layerWorker, layerProxy, layerClient}

// The verdicts on the order of timeouts.
const (
	inOrder    = "in_order"
	outOfOrder = "out_of_order"
)

// timeouts names the layer of each pile-up of durations by how many requests ended in the way that only this layer can:
// clients that gave up, and a proxy's 504. Where two could have made it, it is undetermined.
func timeouts(s *detectors.Span, of []Alert) Timeouts {
	var t Timeouts
	gaveUp, gateway := s.Total.Abandoned.Get(), float64(s.Total.Status["504"])
	left := gaveUp
	for _, p := range slices.SortedFunc(slices.Values(s.Pileups), func(a, b detectors.Pileup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Seconds, b.Seconds))
	}) {
		n := float64(p.Count)
		found := Timeout{Layer: layerUnknown, Seconds: round(p.Seconds), Requests: p.Count, From: "many requests ended there; by whose timeout the log does not tell"}
		switch abandons, gateways := n <= 1.1*left, n <= 1.1*gateway; {
		case abandons && !gateways:
			found.Layer, found.From = layerClient, "inferred: about as many requests ended there as clients gave up, consistent with their own timeout or their CDN's"
			left -= min(n, left)
		case gateways && !abandons:
			found.Layer, found.From = layerProxy, "inferred: about as many requests ended there as were answered 504, consistent with the proxy's timeout"
			gateway -= n
		}
		t.Found = append(t.Found, found)
	}
	t.worker(s, of)
	slices.SortStableFunc(t.Found, func(a, b Timeout) int { return cmp.Compare(a.Seconds.Get(), b.Seconds.Get()) })
	t.lint()
	return t
}

// round takes a sketch's tenth of a per cent away.
func round(seconds float64) detectors.Num {
	if whole := math.Round(seconds); math.Abs(seconds-whole) <= 0.012*whole {
		return detectors.N(whole)
	}
	return detectors.N(math.Round(seconds*10) / 10)
}

// worker adds when a stuck worker is taken back: as php-fpm did it, else as configured.
func (t *Timeouts) worker(s *detectors.Span, of []Alert) {
	for i := range of {
		if e := &of[i].Evidence; e.PHPTimeouts.Get() > 0 && e.StallSeconds.Known() {
			t.Found = append(t.Found, Timeout{
				Layer: layerWorker, Seconds: e.StallSeconds, Requests: uint64(e.PHPTimeouts.Get()), From: "php-fpm killed requests that had run so long",
			})
			return
		}
	}
	if s.Pool.Reclaim > 0 {
		t.Found = append(t.Found, Timeout{
			Layer: layerWorker, Seconds: detectors.N(s.Pool.Reclaim.Seconds()), Assumed: true,
			From: "assumed: pool.reclaim_timeout in effect; php-fpm's request_terminate_timeout may be another",
		})
	}
}

// lint holds the layers against each other: worker < proxy < client, so that a request that nobody waits for any more holds
// no worker. An order that rests on an assumed timeout is told and not judged.
func (t *Timeouts) lint() {
	longest, shortest := map[string]float64{}, map[string]float64{}
	assumed := false
	for _, f := range t.Found {
		v := f.Seconds.Get()
		longest[f.Layer] = max(longest[f.Layer], v)
		if at, known := shortest[f.Layer]; !known || v < at {
			shortest[f.Layer] = v
		}
		assumed = assumed || f.Assumed
	}
	compared := 0
	for i, inner := range layersOut {
		for _, outer := range layersOut[i+1:] {
			in, knowsIn := longest[inner]
			out, knowsOut := shortest[outer]
			if !knowsIn || !knowsOut {
				continue
			}
			sure := !assumed || inner != layerWorker
			if sure {
				compared++
			}
			if in < out {
				continue
			}
			fault := fmt.Sprintf("the %s seems to let go after %s s, the %s already after %s s: meanwhile a worker would work for nobody",
				inner, alerts.Number(in), outer, alerts.Number(out))
			if sure {
				t.Faults = append(t.Faults, fault)
			} else {
				t.Suspected = append(t.Suspected, "if php-fpm has what the configuration says: "+fault)
			}
		}
	}
	switch {
	case len(t.Faults) > 0:
		t.Verdict = outOfOrder
	case compared > 0:
		t.Verdict = inOrder
	default:
		t.Verdict = layerUnknown
	}
	for _, layer := range layersOut {
		if _, known := longest[layer]; !known {
			t.Missing = append(t.Missing, "the timeout of the "+layer+": "+timeoutSources[layer])
		}
	}
}

var timeoutSources = map[string]string{
	layerWorker: "php-fpm's log (request_terminate_timeout), or pool.reclaim_timeout",
	layerProxy:  "answers 504 (fastcgi_read_timeout, proxy_read_timeout)",
	layerClient: "clients that gave up after one and the same time (the CDN's origin timeout)",
}
