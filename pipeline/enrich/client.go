package enrich

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"unsafe"

	"github.com/gaissmai/bart"

	"github.com/squall-sre/squall/pipeline"
)

// maxHops is how many elements of an X-Forwarded-For are looked at. A chain of more trusted proxies than this
// does not exist.
const maxHops = 64

func newTrusted(list []string) (*bart.Lite, error) {
	t := new(bart.Lite)
	for i, s := range list {
		p, err := parsePrefix(s)
		if err != nil {
			return nil, configError(err, "trusted_proxies[%d]", i)
		}
		t.Insert(p)
	}
	return t, nil
}

// parsePrefix reads an address or a prefix; IPv4-mapped ones become IPv4.
func parsePrefix(s string) (netip.Prefix, error) {
	bad := fmt.Errorf("%q is no address range: write an address such as 198.51.100.7 or 2001:db8::1, or a prefix such as 10.0.0.0/8", s)
	if !strings.Contains(s, "/") {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}, bad
		}
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, bad
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, bad
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	if masked := p.Masked(); masked.Addr() != p.Addr() {
		return netip.Prefix{}, fmt.Errorf("%q has bits behind its length: write %s, or %s for the one address", s, masked, p.Addr())
	}
	return p, nil
}

// A ClientSource is what a client's address was taken from, and whether somebody trustworthy vouches for it.
type ClientSource uint8

// The sources. Only a peer, and a hop that a trusted proxy saw, may count as own or allowed: everything else could
// have been written by the client itself.
const (
	ClientUnknown  ClientSource = iota // the line names no address, or a header that cannot be read
	ClientPeer                         // who opened the connection
	ClientHop                          // the rightmost untrusted hop of X-Forwarded-For, the peer being a trusted proxy
	ClientHopAlone                     // the same without a peer in the log
	ClientClaim                        // what the log's writer reckoned from a header, by rules of its own
	ClientHearsay                      // another header than X-Forwarded-For, sent by a trusted proxy that may not have written it
)

var clientSources = [...]string{
	"no address that can be read",
	"who opened the connection",
	"the rightmost untrusted hop of X-Forwarded-For, sent by a trusted proxy",
	"the rightmost untrusted hop of X-Forwarded-For, and nobody vouches for it",
	"what a header claims, and nobody vouches for it",
	"claimed by a header that proxies pass on as the client sent it (X-Real-IP and the like), and nobody vouches for it",
}

// String says it in words.
func (s ClientSource) String() string { return clientSources[s] }

// vouched tells whether the address may count as own or allowed.
func (s ClientSource) vouched() bool { return s == ClientPeer || s == ClientHop }

// resolveClient puts the client's address into r.Client: the rightmost hop of X-Forwarded-For that is not a
// trusted proxy, if the peer is one.
func resolveClient(r *pipeline.Record, trusted *bart.Lite) (source ClientSource) {
	if r.Client, source = clientOf(r, trusted); !r.Client.IsValid() {
		return ClientUnknown
	}
	return source
}

func clientOf(r *pipeline.Record, trusted *bart.Lite) (netip.Addr, ClientSource) {
	client := r.Client.Unmap()
	named := len(r.Forwarded) > 1 || len(r.Forwarded) == 1 && r.Forwarded[0] != '-'
	switch {
	case r.Claimed:
		return claimedClient(r, client, trusted, named)
	case r.Peer.IsValid() && r.Peer.Unmap() != client:
		return toldClient(r, client, trusted, named)
	case !named:
		return client, ClientPeer
	case !client.IsValid():
		// The format logs no peer (Traefik's CLF). The hop serves to tell clients apart, and for nothing more.
		hop, _ := rightmostUntrusted(r.Forwarded, trusted)
		return hop, ClientHopAlone
	case !trusted.Contains(client):
		return client, ClientPeer
	}
	return vouchedHop(r, trusted)
}

// vouchedHop is for a header that a trusted proxy sent. A hop that cannot be read leaves the client unknown. To keep
// the peer instead would make a stranger who sends garbage an own address, since proxies mostly are.
func vouchedHop(r *pipeline.Record, trusted *bart.Lite) (netip.Addr, ClientSource) {
	if r.Doubted { // an address in it may be the client's own words
		return netip.Addr{}, ClientUnknown
	}
	hop, at := rightmostUntrusted(r.Forwarded, trusted)
	if at < r.Hearsay {
		return hop, ClientHearsay
	}
	return hop, ClientHop
}

// toldClient is for an address that the server took from what the peer sent, since its own configuration trusts that
// peer (nginx's realip, Apache's mod_remoteip): if trusted_proxies has it too, it vouches for the address.
func toldClient(r *pipeline.Record, client netip.Addr, trusted *bart.Lite, named bool) (netip.Addr, ClientSource) {
	switch {
	case !trusted.Contains(r.Peer.Unmap()):
		return client, ClientClaim
	case named && trusted.Contains(client):
		return vouchedHop(r, trusted)
	}
	return client, ClientHop
}

// claimedClient is for an address that the balancer reckoned from a header, by rules of its own: Caddy takes the
// leftmost hop, Envoy the last one whoever sent it. Where the line has the peer too it is reckoned anew, if the proxies
// are known. What remains a claim serves to tell clients apart, and for nothing more.
func claimedClient(r *pipeline.Record, client netip.Addr, trusted *bart.Lite, named bool) (netip.Addr, ClientSource) {
	if peer := r.Peer.Unmap(); peer.IsValid() && trusted.Size() > 0 {
		switch {
		case !trusted.Contains(peer):
			return peer, ClientPeer
		case named:
			return vouchedHop(r, trusted)
		}
	}
	if named && (!client.IsValid() || trusted.Contains(client)) {
		hop, _ := rightmostUntrusted(r.Forwarded, trusted)
		return hop, ClientHopAlone
	}
	return client, ClientClaim
}

// rightmostUntrusted walks the list from its right end. When every hop is trusted, the leftmost is the client. at is
// where the hop begins.
func rightmostUntrusted(list []byte, trusted *bart.Lite) (hop netip.Addr, at int) {
	var last netip.Addr
	for range maxHops {
		i := bytes.LastIndexByte(list, ',')
		hop := trimSpace(list[i+1:])
		if len(hop) > 0 {
			a := parseHop(hop)
			if !a.IsValid() || !trusted.Contains(a) {
				return a, i + 1
			}
			last, at = a, i+1
		}
		if i < 0 {
			return last, at
		}
		list = list[:i]
	}
	return netip.Addr{}, 0
}

func trimSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// parseHop reads 203.0.113.7, 203.0.113.7:1234, 2001:db8::1, [2001:db8::1] and [2001:db8::1]:1234.
func parseHop(hop []byte) netip.Addr {
	if len(hop) > 2 && hop[0] == '[' {
		end := bytes.IndexByte(hop, ']')
		if end < 0 {
			return netip.Addr{}
		}
		hop = hop[1:end]
	} else if i := bytes.IndexByte(hop, ':'); i >= 0 && bytes.IndexByte(hop, '.') >= 0 && bytes.IndexByte(hop[i+1:], ':') < 0 {
		hop = hop[:i]
	}
	if i := bytes.IndexByte(hop, '%'); i > 0 && bytes.IndexByte(hop[:i], ':') >= 0 { // the zone is a name of the sender's
		hop = hop[:i]
	}
	return parseAddr(hop)
}

// parseAddr reads an address without a zone. It looks at the bytes first, since netip allocates its errors.
func parseAddr(b []byte) netip.Addr {
	if len(b) < 2 || len(b) > 45 {
		return netip.Addr{}
	}
	dots, colons, double := 0, 0, false
	for i, c := range b {
		switch {
		case c == '.':
			dots++
		case c == ':':
			colons++
			double = double || i > 0 && b[i-1] == ':'
		case hexValue(c) < 0:
			return netip.Addr{}
		}
	}
	if colons == 0 && dots != 3 || colons > 0 && !double && colons != 7 && dots != 3 {
		return netip.Addr{} // a version, a time
	}
	// The string is not kept: an address holds numbers alone, and the error is dropped.
	a, err := netip.ParseAddr(unsafe.String(unsafe.SliceData(b), len(b)))
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap()
}
