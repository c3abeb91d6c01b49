package pane

import "github.com/squall-sre/squall/pipeline"

// Refused counts requests that a limiter refused, by what shows whether it meant them.
type Refused struct {
	StaticQuery uint64   // static files that were asked for with a query string
	Reached     uint64   // an upstream was contacted: the application has a limiter of its own
	Errors      uint64   // answered with 5xx: a refusal, and no failure of the origin
	Clients     Distinct // addresses that were refused static files with a query string
}

// count adds what is known of a refused request before its client is.
func (x *Refused) count(r *pipeline.Record) {
	if r.Static && len(r.Query) > 0 {
		x.StaticQuery++
	}
	if r.Reached == pipeline.Yes {
		x.Reached++
	}
	if r.Status/100 == 5 {
		x.Errors++
	}
}

// add adds the counts of o.
func (x *Refused) add(o *Refused) {
	x.StaticQuery += o.StaticQuery
	x.Reached += o.Reached
	x.Errors += o.Errors
}

func (w *writer) refused(x *Refused) {
	w.uint("limited_static_query", x.StaticQuery)
	w.uint("limited_reached", x.Reached)
	w.uint("limited_5xx", x.Errors)
	w.distinct("limited_clients", &x.Clients)
}
