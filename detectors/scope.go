package detectors

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/squall-sre/squall/pipeline"
)

// A Share is one thing that restarted containers have in common: a node, a namespace, an image, or something that the
// configuration says their sites depend on.
type Share struct {
	Kind     string  `json:"kind"` // node, namespace, image, or the kind of a dependency: mysql, nfs, …
	Name     string  `json:"name"`
	Count    float64 `json:"containers"`         // restarted ones that have it
	Coverage Num     `json:"coverage"`           // of all restarted ones
	Lift     Num     `json:"lift,omitzero"`      // Coverage over the share of all containers that have it: 1 is chance
	Explains bool    `json:"explains,omitempty"` // so many have it, and so few others, that it is the scope
}

const (
	topShares    = 8   // of each kind
	explainCover = 0.8 // of the restarted containers
	explainLift  = 1.5 // times what chance would give
)

// Dependencies are what containers depend on beside their node, as configured: by namespace, then by kind (mysql → db-3).
type Dependencies map[string]map[string]string

// spread is how many containers have one value.
type spread struct {
	hit  int // of the restarted ones
	all  int // of all, where it was told
	base int // of how many all
}

// scope tells what restarted containers share: coverage, and lift over what chance would give (Brin et al., SIGMOD
// 1997). Those that ran out of memory are left out: their reason is their own.
func scope(found []*restart, deps Dependencies) []Share {
	hit := map[[2]string]*spread{}
	count := func(kind, name string, all, base int) {
		if name == "" {
			return
		}
		key := [2]string{kind, name}
		if hit[key] == nil {
			hit[key] = &spread{}
		}
		s := hit[key]
		s.hit++
		if base > s.base || base == s.base && all > s.all {
			s.all, s.base = all, base
		}
	}
	containers := distinctContainers(found)
	for _, r := range containers {
		of := r.population()
		count("node", r.node, of.Node, of.All)
		count("namespace", r.namespace, of.Namespace, of.All)
		if r.status != nil {
			count("image", r.status.Image, of.Image, of.All)
		}
		for kind, name := range deps[r.namespace] {
			count(kind, name, deps.having(kind, name), len(deps))
		}
	}
	return ranked(hit, len(containers))
}

// having is in how many namespaces a dependency is declared.
func (d Dependencies) having(kind, name string) (n int) {
	for _, of := range d {
		if of[kind] == name {
			n++
		}
	}
	return n
}

// ranked lists the widest of each kind: a node that all were on before anything else, since it alone can have failed
// under all of them.
func ranked(hit map[[2]string]*spread, total int) []Share {
	kinds := map[string][]Share{}
	for key, s := range hit {
		x := Share{Kind: key[0], Name: key[1], Count: float64(s.hit), Coverage: N(float64(s.hit) / float64(total))}
		if s.all > 0 && s.base > 0 {
			x.Lift = N(x.Coverage.Get() / (float64(s.all) / float64(s.base)))
		}
		x.Explains = s.hit > 1 && x.Coverage.Get() >= explainCover && x.Lift.Get() >= explainLift
		kinds[x.Kind] = append(kinds[x.Kind], x)
	}
	for _, list := range kinds {
		slices.SortFunc(list, func(a, b Share) int {
			return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(b.Lift.value, a.Lift.value), strings.Compare(a.Name, b.Name))
		})
	}
	order := slices.Sorted(maps.Keys(kinds))
	if node := slices.Index(order, "node"); node > 0 && kinds["node"][0].Coverage.Get() == 1 {
		order = slices.Insert(slices.Delete(order, node, node+1), 0, "node")
	}
	var out []Share
	for _, kind := range order {
		out = append(out, kinds[kind][:min(len(kinds[kind]), topShares)]...)
	}
	return out
}

// distinctContainers gives the restarted containers, each once, without those that ran out of memory.
func distinctContainers(found []*restart) []*restart {
	type container struct{ namespace, pod, name string }
	seen := map[container]bool{}
	var out []*restart
	for _, r := range found {
		c := container{r.namespace, r.pod, r.container}
		if seen[c] || r.outOfMemory() {
			continue
		}
		seen[c] = true
		out = append(out, r)
	}
	return out
}

func (r *restart) outOfMemory() bool { return r.status != nil && r.status.Reason == reasonOOMKilled }

func (r *restart) population() pipeline.Population {
	if r.status == nil {
		return pipeline.Population{}
	}
	return r.status.Population
}
