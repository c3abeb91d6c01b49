package pane

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestPileups(t *testing.T) {
	seed := rand.New(rand.NewPCG(1, 2))
	spread := func(q *Quantiles) {
		for range 20_000 { // log-normal: what services without a timeout look like
			q.Add(int64(math.Exp(seed.NormFloat64()) * 1e9))
		}
	}
	add := func(q *Quantiles, at time.Duration, n int) {
		for range n {
			q.Add(int64(at) + seed.Int64N(int64(5*time.Millisecond)))
		}
	}
	for _, c := range []struct {
		name string
		fill func(*Quantiles)
		want []float64
	}{
		{"nothing", func(*Quantiles) {}, nil},
		{"no timeout", spread, nil},
		{"two clients", func(q *Quantiles) { spread(q); add(q, 8*time.Second, 2000); add(q, 10*time.Second, 9000) }, []float64{8, 10}},
		{"one that is rare", func(q *Quantiles) { spread(q); add(q, 30*time.Second, 100) }, nil},
		{"one in few requests", func(q *Quantiles) { add(q, 25*time.Second, 30) }, []float64{25}},
		{"short ones", func(q *Quantiles) { add(q, 200*time.Millisecond, 5000) }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var q Quantiles
			c.fill(&q)
			got := q.Pileups()
			if len(got) != len(c.want) {
				t.Fatalf("found %v, want %v", got, c.want)
			}
			for i, want := range c.want {
				if math.Abs(got[i].Seconds-want) > 0.02*want {
					t.Errorf("a pile-up at %v s, want %v", got[i].Seconds, want)
				}
			}
		})
	}
}
