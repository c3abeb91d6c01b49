package alerts

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/squall-sre/squall/detectors"
)

// CheckSiteRules reports the first fault of the rules that one site has instead of the general ones of their names.
func CheckSiteRules(configured []Rule, site string, rules []Rule, detectorNames []string) error {
	general, err := compileRules(configured, detectorNames)
	if err == nil {
		_, err = withSiteRules(general, map[string][]Rule{site: rules}, detectorNames)
	}
	return err
}

// withSiteRules puts the rules of single sites behind the general ones that they stand for.
func withSiteRules(general []*rule, sites map[string][]Rule, known []string) ([]*rule, error) {
	variants := map[string][]*rule{}
	names := make([]string, len(general))
	for i, r := range general {
		names[i] = r.Name
	}
	for _, site := range slices.Sorted(maps.Keys(sites)) {
		for _, s := range sites[site] {
			i := slices.Index(names, s.Name)
			if i < 0 {
				msg := fmt.Sprintf("rule %q: name: there is no general rule of this name that site %q could differ from", s.Name, site)
				if near := nearest(s.Name, names); near != "" {
					msg += fmt.Sprintf(": did you mean %q?", near)
				}
				return nil, fmt.Errorf("%s", msg)
			}
			v, err := variant(general[i], site, s, known)
			if err != nil {
				return nil, fmt.Errorf("rule %q: %w", s.Name, err)
			}
			if v != nil {
				variants[s.Name] = append(variants[s.Name], v)
			}
		}
	}
	var out []*rule
	for _, r := range general {
		out = append(append(out, r), variants[r.Name]...)
	}
	return out, nil
}

// variant makes the rule that a site has instead of a general one; nil when it has none.
func variant(general *rule, site string, r Rule, known []string) (*rule, error) {
	if !slices.Contains(general.By, "site") {
		return nil, fmt.Errorf("name: it is by %s and not by site: it cannot differ for site %q", strings.Join(general.By, ", "), site)
	}
	if by := slices.Sorted(slices.Values(r.By)); r.By != nil && !slices.Equal(by, general.By) {
		return nil, fmt.Errorf("by: cannot differ for site %q: the rule is by %s", site, strings.Join(general.By, ", "))
	}
	if slices.Contains(general.except, site) {
		return nil, fmt.Errorf("name: site %q changes it twice", site)
	}
	general.except = append(general.except, site)
	if r.Disabled {
		return nil, nil
	}
	r.By = general.By
	v, err := compileRule(r, known)
	if err != nil {
		return nil, err
	}
	v.site = site
	return v, nil
}

// takes tells whether the rule is the one for a set of labels.
func (r *rule) takes(l detectors.Labels) bool {
	site := l.Get("site")
	if r.site != "" {
		return site == r.site
	}
	return !slices.Contains(r.except, site)
}
