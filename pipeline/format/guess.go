package format

import (
	"bytes"

	"github.com/squall-sre/squall/pipeline"
)

// A forwardedGuess watches a field that is taken for X-Forwarded-For by its place alone. The last hop of that header
// is an address, written by the proxy that is to be trusted; once a stream has anything else there it is another
// header, such as a Host, in which a client may write one of our addresses: from then on nothing in it is believed.
type forwardedGuess struct{ refuted bool }

// judge looks at what a guessed layout found. Where the client itself is a claim, so is all of it.
func (g *forwardedGuess) judge(r *pipeline.Record) {
	if r.Forwarded == nil || r.Claimed {
		return
	}
	g.refuted = g.refuted || !endsInHop(r.Forwarded)
	r.Doubted = g.refuted
}

// A hostGuess watches a field that is taken for the Host header by its place alone. Once a stream has anything else
// there (a request's id, a number), nothing in it is a site: each would be one of its own.
type hostGuess struct{ refuted bool }

// judge tells whether a value is a site's name. Addresses are none, and prove nothing: scanners send them.
func (g *hostGuess) judge(val []byte) bool {
	if g.refuted || absent(val) {
		return false
	}
	if a, _ := addrAnyPort(val); a.IsValid() {
		return false
	}
	g.refuted = !isHostName(bytes.TrimSuffix(hostOf(val), []byte(".")))
	return !g.refuted
}

// endsInHop tells whether the last element of a list is an address, with or without a port, or Squid's word for one
// that it does not tell.
func endsInHop(list []byte) bool {
	list = bytes.TrimRight(list, ", \t")
	last := bytes.TrimLeft(list[bytes.LastIndexByte(list, ',')+1:], " \t")
	a, _ := addrAnyPort(last)
	return a.IsValid() || len(last) == 0 || string(last) == "unknown"
}
