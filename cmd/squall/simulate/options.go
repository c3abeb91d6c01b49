package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// scenario applies the options to a copy of the scenario and checks the result.
func (o *Options) scenario() (Scenario, error) {
	s := o.Scenario
	if o.Zone != nil {
		s.Zone = o.Zone
	}
	if s.Zone == nil {
		s.Zone = time.UTC
	}
	if !o.Start.IsZero() {
		s.Start = o.Start
	}
	if o.Rate < 0 || o.Pool < 0 || o.Patience < 0 || o.PeoplePatience < 0 || o.Reclaim < 0 || o.Backlog < 0 {
		return s, fmt.Errorf("options of scenario %q: no number may be negative", s.Name)
	}
	o.logs(&s)
	s.Sites = slices.Clone(s.Sites)
	for i := range s.Sites {
		o.site(&s.Sites[i], i == 0)
	}
	return s, s.check()
}

// logs fills the formats of the scenario's logs in.
func (o *Options) logs(s *Scenario) {
	if s.Logs = slices.Clone(s.Logs); len(s.Logs) == 0 {
		s.Logs = []Log{{File: "access.log"}}
	}
	for i := range s.Logs {
		if l := &s.Logs[i]; l.Format == "" {
			l.Format = cmp.Or(o.Format, "nginx_extended")
		}
	}
}

func (o *Options) site(s *Site, first bool) {
	if first && o.Host != "" {
		s.Host = o.Host
	}
	if o.Pool > 0 {
		s.Pool.Workers = o.Pool
	}
	if o.Reclaim > 0 {
		s.Pool.Reclaim = o.Reclaim
	}
	if o.Backlog > 0 {
		s.Pool.Backlog = o.Backlog
	}
	s.Pool.DropAbandoned = s.Pool.DropAbandoned || o.DropAbandoned
	if o.PeoplePatience > 0 {
		s.Organic.Patience = Patience{Mean: o.PeoplePatience}
	}
	s.Storms = slices.Clone(s.Storms)
	if first && o.Path != "" && len(s.Storms) > 0 {
		o.rename(s, s.Storms[0].Routes[0].Template)
	}
	for i := range s.Storms {
		st := &s.Storms[i]
		if o.Patience > 0 {
			st.Patience = Patience{Mean: o.Patience}
		}
		if o.Layer != "" {
			st.Layer = o.Layer
		}
		if st.Layer == "" {
			st.Layer = App
		}
		if st.Shape == "" {
			st.Shape = Flat
		}
	}
	if o.Rate > 0 {
		o.scale(s)
	}
}

// rename puts Path where the template stands, in storms and in the organic traffic.
func (o *Options) rename(s *Site, template string) {
	for i := range s.Storms {
		s.Storms[i].Routes = renamed(s.Storms[i].Routes, template, o.Path)
	}
	s.Organic.Routes = renamed(s.Organic.Routes, template, o.Path)
}

func renamed(routes []Route, from, to string) []Route {
	routes = slices.Clone(routes)
	for i := range routes {
		if routes[i].Template == from {
			routes[i].Template = to
		}
	}
	return routes
}

// scale multiplies how many people, storm requests and blips come; monitors keep their interval.
func (o *Options) scale(s *Site) {
	s.Organic.PerSecond *= o.Rate
	for i := range s.Storms {
		s.Storms[i].Count = int(float64(s.Storms[i].Count)*o.Rate + 0.5)
	}
	s.Blips = slices.Clone(s.Blips)
	for i := range s.Blips {
		s.Blips[i].Requests = int(float64(s.Blips[i].Requests)*o.Rate + 0.5)
		s.Blips[i].Abandon = int(float64(s.Blips[i].Abandon)*o.Rate + 0.5)
	}
}
