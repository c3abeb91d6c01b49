package pipeline

import "net/netip"

// AgentMax is how many bytes of an agent tell it from others.
const AgentMax = 256

// Unknown stands in the integer fields of a Record for "the log does not say".
const Unknown = -1

// Tri is a fact that a log states, denies, or does not mention.
type Tri uint8

// The values of Tri. The zero value is "the log does not say".
const (
	Unsaid Tri = iota
	No
	Yes
)

// Origin tells whose address a request came from.
type Origin uint8

// The origins. Own is one of this site's hosts (its interfaces, its configured addresses); Allowed is a
// configured range such as an office; everything else, and a request without an address, is External.
const (
	External Origin = iota
	Own
	Allowed
	Origins // how many there are
)

var originNames = [Origins]string{"external", "own", "allowed"}

// String gives the name used in output: external, own or allowed.
func (o Origin) String() string { return originNames[o] }

// Class is what a client looks like, judged by its agent, method and headers alone.
type Class uint8

// The classes. Scanner is a client that says it is a browser and behaves like none (HEAD, no referrer);
// Probe is a health check; Empty sent no User-Agent.
const (
	Browser Class = iota
	Bot
	Scanner
	Probe
	Empty
	OtherAgent
	Classes // how many there are
)

var classNames = [Classes]string{"browser", "bot", "scanner", "probe", "empty", "other"}

// String gives the name used in output and as Loki metadata.
func (c Class) String() string { return classNames[c] }

// CacheStatus is what a cache in front of the origin did.
type CacheStatus uint8

// The cache states, in the words of nginx's $upstream_cache_status, and CloudFront's for REVALIDATED. CacheUnsaid:
// the log has no such field or the field was empty.
const (
	CacheUnsaid CacheStatus = iota
	CacheHit
	CacheMiss
	CacheExpired
	CacheStale
	CacheUpdating
	CacheRevalidated
	CacheBypass
	CacheRefreshHit // the cache asked the origin whether what it held was still good
	CacheStatuses   // how many there are
)

var cacheNames = [CacheStatuses]string{"", "HIT", "MISS", "EXPIRED", "STALE", "UPDATING", "REVALIDATED", "BYPASS", "REFRESHHIT"}

// String gives nginx's upper-case word, or "" when the log does not say.
func (c CacheStatus) String() string { return cacheNames[c] }

// A Record is one request as its log line tells it, normalised over all formats. Byte slices point into the
// line or into the format's scratch memory and hold only until the next Parse or the end of the Batch; nil
// means absent, empty means present and empty. Times are nanoseconds since the Unix epoch, UTC.
type Record struct {
	Time       int64 // the instant that the line carries, ns; 0 when it carries none
	Resolution int64 // the smallest step of Time in this log, ns (1e9 for nginx's $time_local)
	Start, End int64 // when the request began and ended, ns; equal where no duration is logged

	Host       []byte     // as the client asked for it, without port; nil when the format logs none
	Client     netip.Addr // the peer or, where the format resolves it, the client; invalid when not an address
	Claimed    bool       // Client is what a header says that the client itself may have written
	Peer       netip.Addr // who opened the connection, where the log has it beside a Client of its own reckoning; if that is not Claimed, Peer told it
	ClientPort uint16
	Forwarded  []byte // X-Forwarded-For as logged, for trusted_proxies
	Hearsay    int    // how many bytes at the front of Forwarded are of a header that proxies pass on as it came, such as X-Real-IP: its hops tell clients apart, and nobody vouches for them
	Doubted    bool   // Forwarded was guessed by its place in the line, and is another header by what the stream had there

	Method, Path, Query, Proto []byte // path is raw (percent-encoding kept), without query; nil when malformed
	UserAgent, Referer         []byte
	Cut                        bool // the log's writer cut the line within the path or the query: what there is of them is their beginning

	Status           uint16   // 0: none was sent
	Bytes            int64    // sent to the client; Unknown
	RequestTime      int64    // ns, as the log states it; Unknown
	UpstreamTime     int64    // ns, the sum of the known tries; Unknown when none is known
	UpstreamTimes    []int64  // ns, one for each try in order, Unknown for "-"
	UpstreamStatuses []uint16 // one for each try in order, 0 for "-"; empty when no upstream was contacted
	Upstreams        []byte   // the list of upstream addresses as logged
	Upstream         []byte   // the upstream's name (ingress-nginx: namespace-service-port), the fallback for Host
	Reached          Tri      // whether an upstream was contacted
	Cache            CacheStatus
	Edge             bool // the log is of a layer in front of the balancer: what it let pass stands in the origin's log too
	Abandoned        Tri  // whether the client gave up before the response was complete
	Limited          bool // refused by a rate limiter that the log names, or with status 429
	Malformed        bool // the request line was not a request
	Streaming        bool // 101 or another long-lived response: kept out of latency

	// Set by the enrichers. The strings are shared (interned): keeping one keeps no line alive.
	Site      string // the configured site's name, or the host
	Route     string // the path's template, for example /checkout/{id}
	Agent     string // UserAgent, of which the first AgentMax bytes matter; "" where it is empty or "-"
	AgentHash uint64 // xxHash of Agent
	Origin    Origin
	Class     Class
	Static    bool // the path (not the request URI) ends in the extension of a static file
}

// Reset makes r empty: every integer that can be unknown is Unknown, slices keep their memory.
func (r *Record) Reset() {
	times, statuses := r.UpstreamTimes[:0], r.UpstreamStatuses[:0]
	*r = Record{}
	r.Bytes, r.RequestTime, r.UpstreamTime = Unknown, Unknown, Unknown
	r.UpstreamTimes, r.UpstreamStatuses = times, statuses
}
