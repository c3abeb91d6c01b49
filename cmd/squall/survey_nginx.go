package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// An nginxLog is one access_log of nginx's configuration.
type nginxLog struct {
	path   string        // as it is there: with variables, perhaps
	format string        // the name of its log_format
	hosts  []string      // of the one server that writes it; empty: of none or of several
	held   time.Duration // how long nginx may hold lines back before it writes them
	full   bool          // it writes them when its buffer is full, however long that takes
	packed bool          // it writes them compressed
	partly bool          // only the requests of a condition

	levels, doubled int    // the levels that name it, and those of them where a log is named that tells more
	better          string // path of that log
}

// same tells whether two are one log.
func (l nginxLog) same(other nginxLog) bool { return l.path == other.path && l.format == other.format }

// An nginxFound is what nginx's configuration tells of its logs and sites.
type nginxFound struct {
	logs    []nginxLog
	errors  []string          // paths of error logs
	formats map[string]string // log_format strings by name
	servers [][]string        // server_name of each server
	odd     []string          // access logs that are no files
	levels  [][]nginxLog      // what each level names: nginx writes each of its requests to all of them
}

// nginxWords cuts a configuration into its words; ; { } are words of their own.
func nginxWords(text string) (words []string) {
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case strings.IndexByte(" \t\r\n", c) >= 0:
			i++
		case c == '#':
			if end := strings.IndexByte(text[i:], '\n'); end >= 0 {
				i += end
			} else {
				i = len(text)
			}
		case strings.IndexByte(";{}", c) >= 0:
			if c == '{' && len(words) > 0 && strings.HasSuffix(words[len(words)-1], "_by_lua_block") {
				i = endOfLua(text, i) // quotes and semicolons in it are not nginx's
			} else {
				i++
			}
			words = append(words, string(c))
		case c == '"' || c == '\'':
			var word string
			word, i = quotedWord(text, i)
			words = append(words, "\x00"+word) // quoted: never ; { }
		default:
			end := i
			for end < len(text) && strings.IndexByte(" \t\r\n;", text[end]) < 0 && (text[end] != '{' || text[end-1] == '$') {
				if end++; text[end-1] == '{' { // ${variable}
					for end < len(text) && text[end] != '}' {
						end++
					}
					end = min(end+1, len(text))
				}
			}
			end = max(end, i+1)
			words = append(words, text[i:end])
			i = end
		}
	}
	return words
}

// quotedWord reads the word that begins with the quote at i.
func quotedWord(text string, i int) (word string, end int) {
	var b strings.Builder
	quote := text[i]
	for i++; i < len(text) && text[i] != quote; i++ {
		if text[i] == '\\' && i+1 < len(text) && (text[i+1] == quote || text[i+1] == '\\') {
			i++
		}
		b.WriteByte(text[i])
	}
	return b.String(), i + 1
}

// endOfLua is where the brace stands that closes the one at i. Braces in Lua's strings and comments are none.
func endOfLua(text string, i int) int {
	skip := func(to string) {
		if n := strings.Index(text[i:], to); n >= 0 {
			i += n + len(to) - 1
		}
	}
	for depth := 0; i < len(text); i++ {
		switch rest := text[i:]; {
		case rest[0] == '{':
			depth++
		case rest[0] == '}':
			if depth--; depth == 0 {
				return i
			}
		case rest[0] == '"' || rest[0] == '\'':
			_, end := quotedWord(text, i)
			i = end - 1
		case strings.HasPrefix(rest, "[["), strings.HasPrefix(rest, "--[["):
			skip("]]")
		case strings.HasPrefix(rest, "--"):
			skip("\n")
		}
	}
	return i
}

// An nginxBlock is one that is open.
type nginxBlock struct {
	name  string
	hosts []string   // of a server
	logs  []nginxLog // that are named in it, beside those of the blocks in it
	below []nginxLog // of a server: that its locations name
}

// A nginxReader goes through directives.
type nginxReader struct {
	found   nginxFound
	blocks  []nginxBlock // the first is that of the file
	include nginxInclude
	depth   int // of includes
	files   int // that were included
}

// An nginxInclude gives the texts that the pattern of an include stands for.
type nginxInclude func(pattern string) []string

const (
	maxIncludes   = 16      // how deep files may include each other
	maxNginxFiles = 1000    // how many may be included
	maxNginxBytes = 8 << 20 // of all that are read from a disk
)

// readNginx reads a configuration from its first file on.
func readNginx(text string, include nginxInclude) nginxFound {
	r := &nginxReader{found: nginxFound{formats: map[string]string{}}, include: include, blocks: []nginxBlock{{}}}
	r.read(text)
	for len(r.blocks) > 0 {
		r.end()
	}
	r.found.compare()
	return r.found
}

func (r *nginxReader) read(text string) {
	var directive []string
	for _, word := range nginxWords(text) {
		switch word {
		case ";":
			r.directive(directive)
			directive = nil
		case "{":
			name := ""
			if len(directive) > 0 {
				name = directive[0]
			}
			r.blocks = append(r.blocks, nginxBlock{name: name})
			directive = nil
		case "}":
			if len(r.blocks) > 1 {
				r.end()
			}
			directive = nil
		default:
			directive = append(directive, strings.TrimPrefix(word, "\x00"))
		}
	}
}

// in gives the innermost open block of a name, nil when none is open.
func (r *nginxReader) in(name string) *nginxBlock {
	for i := len(r.blocks) - 1; i >= 0; i-- {
		if r.blocks[i].name == name {
			return &r.blocks[i]
		}
	}
	return nil
}

func (r *nginxReader) directive(d []string) {
	if len(d) < 2 {
		return
	}
	requests := r.in("stream") == nil && r.in("mail") == nil // these log connections
	switch block := &r.blocks[len(r.blocks)-1]; {
	case d[0] == "include" && r.include != nil && r.depth < maxIncludes:
		r.depth++
		for _, text := range r.include(d[1]) {
			if r.files++; r.files <= maxNginxFiles {
				r.read(text)
			}
		}
		r.depth--
	case d[0] == "error_log":
		if filepath.IsAbs(d[1]) && !strings.HasPrefix(d[1], "/dev/") && !slices.Contains(r.found.errors, d[1]) {
			r.found.errors = append(r.found.errors, d[1])
		}
	case !requests:
	case d[0] == "log_format":
		from := 2
		if len(d) > 2 && strings.HasPrefix(d[2], "escape=") {
			from = 3
		}
		r.found.formats[d[1]] = strings.Join(d[from:], "")
	case d[0] == "access_log":
		r.accessLog(block, d)
	case d[0] == "server_name" && block.name == "server":
		block.hosts = append(block.hosts, d[1:]...)
	}
}

func (r *nginxReader) accessLog(block *nginxBlock, d []string) {
	switch {
	case d[1] == "off":
		return
	case strings.HasPrefix(d[1], "syslog:") || strings.HasPrefix(d[1], "/dev/"):
		if !slices.Contains(r.found.odd, d[1]) {
			r.found.odd = append(r.found.odd, d[1])
		}
		return
	}
	log := nginxLog{path: d[1], format: "combined"}
	for i, word := range d[2:] {
		key, value, has := strings.Cut(word, "=")
		switch {
		case has && key == "if":
			log.partly = true
		case key == "gzip" && (has || i > 0):
			log.packed = true
		case has && key == "buffer":
			log.full = log.held == 0
		case has && key == "flush":
			log.held, log.full = nginxTime(value), false
		case i == 0 && !has:
			log.format = word
		}
	}
	block.logs = append(block.logs, log)
}

// nginxTime reads a time as nginx writes it, as in 500ms or 1m; a number alone is seconds.
func nginxTime(text string) time.Duration {
	for _, unit := range []string{"", "s"} {
		if d, err := time.ParseDuration(text + unit); err == nil && d > 0 {
			return d
		}
	}
	return 0
}

// end leaves a block.
func (r *nginxReader) end() {
	block := r.blocks[len(r.blocks)-1]
	r.blocks = r.blocks[:len(r.blocks)-1]
	if len(block.logs) > 0 {
		r.found.levels = append(r.found.levels, block.logs)
	}
	if server := r.in("server"); server != nil { // a location in it
		server.below = append(server.below, block.logs...)
		return
	}
	hosts := plainHosts(block.hosts)
	if len(hosts) > 0 {
		r.found.servers = append(r.found.servers, hosts)
	}
	for _, log := range append(block.logs, block.below...) {
		log.hosts = hosts
		r.found.add(log)
	}
}

// add notes a log once; one that several servers write is no server's.
func (n *nginxFound) add(log nginxLog) {
	i := slices.IndexFunc(n.logs, log.same)
	if i < 0 {
		n.logs = append(n.logs, log)
		return
	}
	is := &n.logs[i]
	if !slices.Equal(is.hosts, log.hosts) {
		is.hosts = nil
	}
	is.held, is.full, is.packed = max(is.held, log.held), is.full || log.full, is.packed || log.packed
}

// compare finds the logs whose requests are in another one too, which tells more of them.
func (n *nginxFound) compare() {
	for _, level := range n.levels {
		var best *nginxLog
		for i := range level {
			if l := &level[i]; !l.partly && !l.packed && (best == nil || n.tells(l.format) > n.tells(best.format)) {
				best = l
			}
		}
		for _, l := range level {
			is := &n.logs[slices.IndexFunc(n.logs, l.same)]
			is.levels++
			if best != nil && !l.same(*best) {
				is.doubled++
				is.better = best.path
			}
		}
	}
}

// telling are the variables that detection uses, by how much hangs on them.
var telling = [][]string{
	{"upstream_response_time"}, {"request_time"}, {"status"}, {"request", "request_uri", "uri"}, {"msec", "time_iso8601", "time_local"},
	{"host", "http_host", "server_name"}, {"remote_addr", "http_x_forwarded_for"}, {"http_user_agent"}, {"upstream_cache_status"}, {"limit_req_status"},
}

// tells is how much a log_format tells.
func (n *nginxFound) tells(name string) (score int) {
	text := n.formats[name]
	if name == "combined" {
		text = "$remote_addr $time_local $request $status $http_user_agent" // it is nginx's own
	} else if _, err := nginxChoice(text); err != nil {
		return 0
	}
	for i, any := range telling {
		if slices.ContainsFunc(any, func(v string) bool { return hasVariable(text, v) }) {
			score += 1 << (len(telling) - i)
		}
	}
	return score
}

// hasVariable tells whether a log_format has a variable: $host is not in $hostname.
func hasVariable(format, name string) bool {
	if strings.Contains(format, "${"+name+"}") {
		return true
	}
	for rest, found := format, true; found; {
		if _, rest, found = strings.Cut(rest, "$"+name); found && (rest == "" || !isNginxName(rest[0])) {
			return true
		}
	}
	return false
}

func isNginxName(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// plainHosts leaves out patterns and what is no name.
func plainHosts(names []string) (hosts []string) {
	for _, n := range names {
		n = strings.ToLower(strings.TrimSuffix(n, "."))
		if n == "" || n == "_" || n == "localhost" || strings.ContainsAny(n, "*~$\"") || strings.HasPrefix(n, ".") || !strings.Contains(n, ".") ||
			slices.Contains(hosts, n) {
			continue
		}
		hosts = append(hosts, n)
	}
	return hosts
}

// glob is the pattern of an access log's path: what a variable stands for is not known.
func (l nginxLog) glob() string {
	var b strings.Builder
	for i := 0; i < len(l.path); i++ {
		if l.path[i] != '$' {
			b.WriteByte(l.path[i])
			continue
		}
		b.WriteByte('*')
		if i+1 < len(l.path) && l.path[i+1] == '{' {
			for i < len(l.path)-1 && l.path[i] != '}' {
				i++
			}
			continue
		}
		for i+1 < len(l.path) && isNginxName(l.path[i+1]) {
			i++
		}
	}
	return b.String()
}

// nginxDump takes apart what `nginx -T` prints: each file once, under its name. text is the first of them.
func nginxDump(dump string) (text string, include nginxInclude) {
	const head = "# configuration file "
	files, first := map[string]string{}, ""
	for part := range strings.SplitSeq("\n"+dump, "\n"+head) {
		path, body, ok := strings.Cut(part, ":\n")
		if !ok || !filepath.IsAbs(path) {
			continue
		}
		if first == "" {
			first = path
		}
		files[path] = body
	}
	names := slices.Sorted(maps.Keys(files))
	return files[first], func(pattern string) (texts []string) {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(first), pattern)
		}
		for _, name := range names {
			if fits, err := filepath.Match(pattern, name); name != first && (name == pattern || fits && err == nil) {
				texts = append(texts, files[name])
			}
		}
		return texts
	}
}

// nginxFiles reads a configuration and what it includes from files. root is put before absolute paths.
func nginxFiles(root, path string) (text string, include nginxInclude, err error) {
	first, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		return "", nil, err
	}
	size := len(first)
	return string(first), func(pattern string) (texts []string) {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(path), pattern)
		}
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil
		}
		for _, name := range found {
			if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
				continue
			}
			text, err := os.ReadFile(name)
			if size += len(text); err != nil || size > maxNginxBytes {
				continue
			}
			texts = append(texts, string(text))
		}
		return texts
	}, nil
}
