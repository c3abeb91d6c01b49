package enrich

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"unicode/utf8"

	"github.com/squall-sre/squall/pipeline"
)

// mask stands for a value that was taken out. Its bytes need no escape in any format.
const mask = "***"

// RedactConfig says what a line may keep.
type RedactConfig struct {
	Query   string   // mask (the default: values of sensitive keys), drop (whole queries) or keep
	Keys    []string // added to the built-in sensitive keys
	Client  string   // keep (the default), truncate (to /24 and /48) or hmac
	HMACKey []byte   // for hmac, at least 16 bytes; the same on all nodes, so that they count alike
}

// A Redactor takes secrets and, where configured, addresses out of lines before they are stored. It is safe
// for concurrent use.
//
// It works on the line as text and not on its fields, so that lines that no format understands are redacted
// too, and so that what is stored is still a line of its format: values are replaced where they stand, quotes,
// separators and columns stay. A pseudonym is itself an address, of a range that is assigned to nobody.
type Redactor struct {
	dropQuery, maskQuery bool
	keys                 map[string]bool
	mayBeKey             nameFilter                  // lets the keys pass, and the sensitive endings
	client               func(netip.Addr) netip.Addr // nil to keep
}

// sensitiveKeys are the names, in lower case with _ for -, whose values are secrets or name a person.
var sensitiveKeys = []string{
	"token", "sig", "sign", "signature", "email", "e_mail", "mail", "code", "key", "pass", "password", "passwd", "passphrase", "pwd", "pw",
	"secret", "auth", "authorization", "bearer", "access_token", "accesstoken", "id_token", "refresh_token", "session", "sessionid", "session_id",
	"sid", "sess", "jsessionid", "phpsessid", "aspsessionid", "jwt", "api_key", "apikey", "x_api_key", "api_token", "client_secret", "otp", "pin",
	"credential", "credentials", "hmac", "csrf", "xsrf", "csrfmiddlewaretoken", "samlresponse", "samlrequest", "assertion", "nonce", "ticket",
	"awsaccesskeyid", "x_amz_credential", "x_amz_signature", "x_amz_security_token", "x_goog_signature", "x_goog_credential", "policy",
	"key_pair_id", "invite", "phone", "ssn", "private_key", "access_key", "secret_key",
}

// sensitiveEndings make reset_token, csrf-token and the like sensitive.
var sensitiveEndings = []string{"_token", "_secret", "_password", "_passwd", "_signature", "_session", "_apikey", "_api_key", "_email", "_jwt", "token", "password"}

// sensitiveFields are the fields of JSON logs whose strings are masked whole, with any prefix before a _
// (request_Authorization, http_cookie). Names such as code and key mean other things there.
var sensitiveFields = []string{
	"authorization", "cookie", "cookies", "set_cookie", "api_key", "x_api_key", "auth_token", "security_token", "csrf_token", "xsrf_token",
	"password", "passwd", "secret", "token", "access_token", "id_token", "refresh_token", "jwt", "client_secret", "cs(cookie)", "private_key",
}

// NewRedactor checks cfg.
func NewRedactor(cfg RedactConfig) (*Redactor, error) {
	rd := &Redactor{keys: map[string]bool{}}
	var errs []error
	switch cfg.Query {
	case "", "mask":
		rd.maskQuery = true
	case "drop":
		rd.maskQuery, rd.dropQuery = true, true
	case "keep":
	default:
		errs = append(errs, configError(fmt.Errorf("%q is no way to redact queries: write mask, drop or keep", cfg.Query), "redact.query"))
	}
	for _, k := range sensitiveKeys {
		rd.add(k)
	}
	for _, ending := range sensitiveEndings {
		rd.mayBeKey.add(ending, true)
	}
	for i, k := range cfg.Keys {
		n := normalKey(nil, []byte(k))
		if len(n) == 0 || len(n) > keyMax/3 {
			errs = append(errs, configError(fmt.Errorf("%q is no name of a query parameter", k), "redact.keys[%d]", i))
		}
		rd.add(string(n))
	}
	switch cfg.Client {
	case "", "keep":
	case "truncate":
		rd.client = truncateAddr
	case "hmac":
		if len(cfg.HMACKey) < 16 {
			errs = append(errs, configError(errors.New("hmac needs a key of at least 16 bytes, the same on all nodes"), "redact.hmac_key"))
		}
		key := bytes.Clone(cfg.HMACKey)
		rd.client = func(a netip.Addr) netip.Addr { return pseudonym(key, a) }
	default:
		errs = append(errs, configError(fmt.Errorf("%q is no way to redact addresses: write keep, truncate or hmac", cfg.Client), "redact.client"))
	}
	return rd, errors.Join(errs...)
}

// add makes a key, as normalKey gives it, sensitive.
func (rd *Redactor) add(key string) {
	rd.keys[key] = true
	rd.mayBeKey.add(key, false)
}

// An edit replaces line[from:to].
type edit struct {
	from, to int
	text     string
}

// Line gives line as it may be stored: redacted, valid UTF-8 with every invalid byte written as \xHH, and at
// most pipeline.MaxLine bytes. r is the line's enriched record, or nil when the line has none; then every
// address in it counts as a client's. The result is line itself if nothing had to change, else it is built in
// dst's memory.
func (rd *Redactor) Line(dst, line []byte, r *pipeline.Record) []byte {
	var room [24]edit
	edits := room[:0]
	json := jsonStart(line) >= 0
	if rd.maskQuery {
		edits = rd.secrets(edits, line, json)
	}
	if rd.dropQuery {
		edits = dropQueries(edits, line, r)
	}
	if rd.client != nil {
		edits = rd.addresses(edits, line, r)
	}
	valid := utf8.Valid(line)
	if len(edits) == 0 && valid && len(line) <= pipeline.MaxLine {
		return line
	}
	slices.SortFunc(edits, func(a, b edit) int {
		if a.from != b.from {
			return a.from - b.from
		}
		return b.to - a.to
	})
	out, at := dst[:0], 0
	for _, e := range edits {
		if e.from < at { // within what is replaced already, or reaching out of it
			at = max(at, e.to)
			continue
		}
		out = appendValid(out, line[at:e.from], json)
		out = append(out, e.text...)
		at = e.to
	}
	out = appendValid(out, line[min(at, len(line)):], json)
	return cutLine(out)
}

// appendValid appends b, escaping bytes that are not UTF-8. In JSON a backslash is escaped itself.
func appendValid(dst, b []byte, json bool) []byte {
	const digits = "0123456789ABCDEF"
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r != utf8.RuneError || size > 1 {
			n := size
			for n < len(b) && b[n] < utf8.RuneSelf {
				n++
			}
			dst, b = append(dst, b[:n]...), b[n:]
			continue
		}
		if json {
			dst = append(dst, '\\')
		}
		dst = append(dst, '\\', 'x', digits[b[0]>>4], digits[b[0]&15])
		b = b[1:]
	}
	return dst
}

func cutLine(b []byte) []byte {
	if len(b) <= pipeline.MaxLine {
		return b
	}
	b = b[:pipeline.MaxLine]
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				b = b[:i]
			}
			break
		}
	}
	return b
}

// jsonStart tells where the JSON of a line begins: at its head, or behind a prefix as Caddy's console and
// journals write it; -1 for none.
func jsonStart(line []byte) int {
	if len(line) > 0 && line[0] == '{' {
		return 0
	}
	if i := bytes.Index(line, []byte(`{"`)); i > 0 && line[i-1] <= ' ' {
		return i
	}
	return -1
}

// dropQueries takes out everything from a question mark to the end of its word, and the query where a format
// logs it by itself.
func dropQueries(edits []edit, line []byte, r *pipeline.Record) []edit {
	for i := 0; i < len(line); {
		q := bytes.IndexByte(line[i:], '?')
		if q < 0 {
			break
		}
		q += i
		end := q + 1
		for end < len(line) && line[end] > ' ' && line[end] != '"' && line[end] != '|' && line[end] != '}' {
			if line[end] == '\\' && end+1 < len(line) && line[end+1] == '"' && quoteEnds(line[end+2:]) {
				break
			}
			end++
		}
		edits = append(edits, edit{from: q, to: end})
		i = end
	}
	if r == nil || len(r.Query) < 2 {
		return edits
	}
	for i := 0; ; {
		q := bytes.Index(line[i:], r.Query)
		if q < 0 {
			return edits
		}
		q += i
		i = q + len(r.Query)
		if (q == 0 || line[q-1] != '?') && bytes.IndexByte(r.Query, '=') >= 0 {
			edits = append(edits, edit{from: q, to: i, text: "-"})
		}
	}
}

// The pseudonyms' ranges: 240.0.0.0/4 is reserved and never routed; fd73:7175::/32 is one unique local prefix.
// 28 bits keep n addresses apart but for about n²/2²⁹ pairs: of 15,000 clients, no two on most days.
var (
	pseudonyms4 = netip.MustParsePrefix("240.0.0.0/4")
	pseudonyms6 = netip.MustParsePrefix("fd73:7175::/32")
)

// pseudonym gives an address's keyed stand-in of the same family; a stand-in is its own.
func pseudonym(key []byte, a netip.Addr) netip.Addr {
	if pseudonyms4.Contains(a) || pseudonyms6.Contains(a) {
		return a
	}
	h := hmac.New(sha256.New, key)
	h.Write(a.AsSlice())
	sum := h.Sum(nil)
	if a.Is4() {
		return netip.AddrFrom4([4]byte{0xf0 | sum[0]&15, sum[1], sum[2], sum[3]})
	}
	out := pseudonyms6.Addr().As16()
	copy(out[4:], sum)
	return netip.AddrFrom16(out)
}

// truncateAddr keeps the network: 24 bits of IPv4, 48 of IPv6.
func truncateAddr(a netip.Addr) netip.Addr {
	bits := 24
	if !a.Is4() {
		bits = 48
	}
	p, err := a.Prefix(bits)
	if err != nil {
		return a
	}
	return p.Addr()
}

// addresses replaces the client's address and the hops of X-Forwarded-For, however they are written. Other
// addresses stay: those of upstreams and of our own proxies are what an incident is explained with.
func (rd *Redactor) addresses(edits []edit, line []byte, r *pipeline.Record) []edit {
	for i := 0; i < len(line); {
		if !isAddrByte(line[i]) {
			i++
			continue
		}
		end := i + 1
		for end < len(line) && isAddrByte(line[end]) {
			end++
		}
		if i > 0 && (line[i-1] == '%' || line[i-1] == '#') {
			i = min(i+2, end) // the digits of an escaped blank
		}
		if i == 0 || !isLetter(line[i-1]) || hexValue(line[i-1]) >= 0 {
			edits = rd.address(edits, line, i, end, r)
		}
		i = end
	}
	return edits
}

func isAddrByte(c byte) bool { return hexValue(c) >= 0 || c == '.' || c == ':' }

// address looks at a run of bytes of which addresses consist: an address, perhaps with a port behind it.
func (rd *Redactor) address(edits []edit, line []byte, from, to int, r *pipeline.Record) []edit {
	run := line[from:to]
	if len(run) > 52 || bytes.IndexByte(run, '.') < 0 && bytes.Count(run, []byte(":")) < 2 {
		return edits
	}
	run = bytes.TrimRight(run, ".")
	if !bytes.HasSuffix(run, []byte("::")) {
		run = bytes.TrimRight(run, ":")
	}
	a, size := parseAddr(run), len(run)
	if !a.IsValid() || !isClient(a, r) {
		// An IPv6 address and a port, without brackets, is an IPv6 address as well: see whose it is.
		i := bytes.LastIndexByte(run, ':')
		if i < 0 {
			return edits
		}
		b := parseAddr(run[:i])
		if !b.IsValid() || !isClient(b, r) {
			return edits
		}
		a, size = b, i
	}
	if new := rd.client(a); new != a {
		edits = append(edits, edit{from: from, to: from + size, text: new.String()})
	}
	return edits
}

// isClient tells whether a is the record's client or one of the hops that its request came over.
func isClient(a netip.Addr, r *pipeline.Record) bool {
	if r == nil || a == r.Client.Unmap() {
		return true
	}
	list := r.Forwarded
	for range maxHops {
		if len(list) == 0 {
			return false
		}
		hop, rest, _ := bytes.Cut(list, []byte{','})
		if parseHop(trimSpace(hop)) == a {
			return true
		}
		list = rest
	}
	return false
}

// sensitive tells whether a decoded, lower-case key names a secret: by itself, by its last part in
// user[password] and user.password, or by its ending.
func (rd *Redactor) sensitive(key []byte) bool {
	if rd.keys[string(key)] {
		return true
	}
	key = bytes.TrimRight(key, "]")
	if i := max(bytes.LastIndexByte(key, '['), bytes.LastIndexByte(key, '.')); i >= 0 {
		key = key[i+1:]
		if rd.keys[string(key)] {
			return true
		}
	}
	for _, ending := range sensitiveEndings {
		if len(key) >= len(ending) && string(key[len(key)-len(ending):]) == ending {
			return true
		}
	}
	return false
}

func sensitiveField(key []byte) bool {
	for _, f := range sensitiveFields {
		n := len(key) - len(f)
		if n >= 0 && string(key[n:]) == f && (n == 0 || key[n-1] == '_' || key[n-1] == '.') {
			return true
		}
	}
	return false
}

// mayBeField lets the sensitive fields pass.
var mayBeField = func() (f nameFilter) {
	for _, name := range sensitiveFields {
		f.add(name, true)
	}
	return f
}()
