package enrich

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/squall-sre/squall/pipeline"
)

// Names of sites that stand for no host.
const (
	siteOther   = "other"   // the host is no host name, or there are too many
	siteDefault = "default" // the line names no host and the source no site
)

const (
	hostMax  = 253 // bytes: RFC 1035
	siteIdle = int64(3600e9)
	minute   = int64(60e9)
)

type site struct {
	name     string
	tree     *routeTree   // of declared routes; nil for none
	unlisted bool         // holds one of the places that Limits.Sites counts
	seen     atomic.Int64 // event time of about the last record, ns
	gone     atomic.Bool  // its place was given away
}

// siteTable gives each host its site. A configured host is its site for ever. An unlisted one is a site of
// its own while there is a place: their number is bounded, because a site is a label in Loki and the Host
// header is the client's to invent. When the places are used up, hosts that were not seen for an hour of event
// time lose theirs, so that a scan with invented hosts does no harm beyond its end. Which unlisted hosts have a
// place then depends on the order of arrival, and it is the one thing here that does; whoever serves more
// hosts than the limit lists them.
type siteTable struct {
	configured map[string]*site // by host
	names      map[string]*site
	other      *site
	none       *site // no host logged
	metrics    *metrics

	memo *memo[*site] // by the host as logged

	limit  int
	newest atomic.Int64 // event time, ns

	mu       sync.Mutex
	unlisted map[string]*site // by name
	swept    int64            // event time of the last sweep, ns
}

func newSiteTable(sites []Site, limit int, m *metrics) (*siteTable, error) {
	t := &siteTable{
		configured: map[string]*site{}, names: map[string]*site{},
		other: &site{name: siteOther}, none: &site{name: siteDefault},
		metrics: m, memo: newMemo[*site](4 << 10), limit: limit, unlisted: map[string]*site{},
	}
	var errs []error
	owner := map[string]int{}
	for i, c := range sites {
		s := &site{name: c.Name}
		switch {
		case c.Name == "" || c.Name == siteOther || len(c.Name) > hostMax || !printable(c.Name):
			errs = append(errs, configError(fmt.Errorf("%q is no name for a site: write 1 to %d printable characters, not %q", c.Name, hostMax, siteOther), "sites[%d].name", i))
		case t.names[c.Name] != nil:
			errs = append(errs, configError(fmt.Errorf("%q is already the name of a site", c.Name), "sites[%d].name", i))
		}
		t.names[c.Name] = s
		for j, h := range c.Hosts {
			host, ok := normalHost(nil, []byte(h))
			if !ok {
				errs = append(errs, configError(fmt.Errorf("%q is no host: write a name such as www.shop.example or an address", h), "sites[%d].hosts[%d]", i, j))
				continue
			}
			if first, taken := owner[string(host)]; taken {
				errs = append(errs, configError(fmt.Errorf("%q is already a host of sites[%d] (%s)", h, first, sites[first].Name), "sites[%d].hosts[%d]", i, j))
				continue
			}
			owner[string(host)] = i
			t.configured[string(host)] = s
		}
		tree, err := newRouteTree(uint32(i+1), c.Routes, fmt.Sprintf("sites[%d].routes", i))
		if err != nil {
			errs = append(errs, err)
		}
		s.tree = tree
	}
	// A site's name is a host of its own, unless another site has it: an unlisted host of that name would
	// otherwise be counted into the site without its routes.
	for _, c := range sites {
		if host, ok := normalHost(nil, []byte(c.Name)); ok && t.configured[string(host)] == nil {
			t.configured[string(host)] = t.names[c.Name]
		}
	}
	return t, errors.Join(errs...)
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// fixed gives the site of a source.
func (t *siteTable) fixed(name string) *site {
	if s := t.names[name]; s != nil {
		return s
	}
	if host, ok := normalHost(nil, []byte(name)); ok && t.configured[string(host)] != nil {
		return t.configured[string(host)]
	}
	return &site{name: strings.Clone(name)}
}

func (t *siteTable) treeOf(name string) *routeTree {
	return t.fixed(name).tree
}

// find gives r's site: by its host, else the source's, else by the upstream's name, else the default.
func (t *siteTable) find(r *pipeline.Record, fixed *site) *site {
	host := r.Host
	if !logged(host) {
		if fixed != nil {
			return fixed
		}
		if host = r.Upstream; !logged(host) {
			return t.none
		}
	}
	if len(host) > 2*hostMax {
		t.metrics.invalid.Inc()
		return t.other
	}
	h := t.memo.hash(0, host)
	if s, ok := t.memo.get(h, 0, host); ok && !s.gone.Load() {
		if s == t.other {
			t.metrics.invalid.Inc()
		}
		if s.unlisted {
			t.touch(s, r.Time)
		}
		return s
	}
	return t.lookup(h, host, r.Time)
}

// logged tells whether a field names a host: "-" is what many logs write for none, "_" is nginx's catch-all.
func logged(host []byte) bool {
	return len(host) > 1 || len(host) == 1 && host[0] != '-' && host[0] != '_'
}

func (t *siteTable) touch(s *site, now int64) {
	if seen := s.seen.Load(); now > seen+minute {
		s.seen.Store(now)
		if now > t.newest.Load() {
			t.newest.Store(now)
		}
	}
}

func (t *siteTable) lookup(h uint64, host []byte, now int64) *site {
	var buf [hostMax]byte
	name, ok := normalHost(buf[:0], host)
	if !ok {
		t.metrics.invalid.Inc()
		t.memo.put(h, 0, host, t.other)
		return t.other
	}
	s := t.configured[string(name)]
	if s == nil {
		s = t.admit(name, now)
	}
	if s == nil {
		t.metrics.limit.Inc()
		return t.other
	}
	t.memo.put(h, 0, host, s)
	return s
}

// admit gives name a place among the unlisted sites, or nil.
func (t *siteTable) admit(name []byte, now int64) *site {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.unlisted[string(name)]; s != nil {
		t.touch(s, now)
		return s
	}
	if len(t.unlisted) >= t.limit {
		t.sweep(max(now, t.newest.Load()))
		if len(t.unlisted) >= t.limit {
			return nil
		}
	}
	s := &site{name: string(name), unlisted: true}
	s.seen.Store(now)
	if now > t.newest.Load() {
		t.newest.Store(now)
	}
	t.unlisted[s.name] = s
	return s
}

// sweep takes the places of hosts that were idle for an hour, at most once a minute of event time.
func (t *siteTable) sweep(now int64) {
	if now < t.swept+minute {
		return
	}
	t.swept = now
	for name, s := range t.unlisted {
		if s.seen.Load() < now-siteIdle {
			s.gone.Store(true)
			delete(t.unlisted, name)
		}
	}
}

// normalHost appends host to dst in lower case, without port and trailing dot, if it is a host name or an
// address. An IPv6 address is written without brackets.
func normalHost(dst, host []byte) ([]byte, bool) {
	if len(host) > 0 && host[0] == '[' {
		end := bytes.IndexByte(host, ']')
		if end < 0 || !validPort(host[end+1:]) {
			return dst, false
		}
		return appendAddr(dst, host[1:end])
	}
	if i := bytes.IndexByte(host, ':'); i >= 0 {
		if bytes.IndexByte(host[i+1:], ':') >= 0 {
			return appendAddr(dst, host)
		}
		if !validPort(host[i:]) {
			return dst, false
		}
		host = host[:i]
	}
	host = bytes.TrimSuffix(host, []byte{'.'})
	if len(host) == 0 || len(host) > hostMax {
		return dst, false
	}
	label := 0
	for i, c := range host {
		switch {
		case c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_':
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		case c == '-' && label > 0 && i+1 < len(host) && host[i+1] != '.':
		case c == '.' && label > 0:
			label = -1
		default:
			return dst, false
		}
		if label++; label > 63 {
			return dst, false
		}
		dst = append(dst, c)
	}
	return dst, true
}

func appendAddr(dst, text []byte) ([]byte, bool) {
	a := parseAddr(text)
	if !a.IsValid() {
		return dst, false
	}
	return a.AppendTo(dst), true
}

// validPort accepts nothing or a colon and up to five digits.
func validPort(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	if b[0] != ':' || len(b) > 6 {
		return false
	}
	for _, c := range b[1:] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}
