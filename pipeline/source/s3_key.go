package source

import (
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
)

// A keyDate is a date in the key of an object. AWS puts one or two into each: where the time is in the key, the
// objects of one balancer are listed in the order of time, and a listing may begin at a time.
type keyDate struct {
	start, end int // key[start:end]
	layout     keyLayout
	at         time.Time
}

// A keyLayout is a form in which keys tell the time, in UTC.
type keyLayout struct {
	text string
	span time.Duration // what it leaves open
	dir  bool          // it is a folder, into which an object may come that is named after a neighbour's time
}

// keyLayouts, longest first: folders of days, hours and minutes; ALB, NLB and WAF; Firehose and CloudFront.
var keyLayouts = []keyLayout{
	{"2006-01-02-15-04-05", time.Second, false},
	{"2006/01/02/15/04", time.Minute, true},
	{"2006-01-02-15-04", time.Minute, false},
	{"20060102T1504Z", 0, false},
	{"2006/01/02/15", time.Hour, true},
	{"2006-01-02-15", time.Hour, false},
	{"2006/01/02", 24 * time.Hour, true},
}

// nextDate gives the first date in the key that begins at or behind from.
func nextDate(key string, from int) (keyDate, bool) {
	for i := from; i < len(key); i++ {
		if !isDigit(key[i]) || i > 0 && isDigit(key[i-1]) {
			continue
		}
		for _, l := range keyLayouts {
			end := i + len(l.text)
			if end > len(key) || end < len(key) && isDigit(key[end]) || l.dir && (end == len(key) || key[end] != '/') {
				continue
			}
			if at, err := time.Parse(l.text, key[i:end]); err == nil {
				return keyDate{start: i, end: end, layout: l, at: at}, true
			}
		}
	}
	return keyDate{}, false
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// objectTime is where an object belongs in the order of reading: the last date of its key, which is the most
// exact. What that leaves open is filled in by the time of delivery, which alone counts where there is no date.
// modified may be unknown, the zero time.
func objectTime(key string, modified time.Time) (at time.Time, dated bool) {
	var last keyDate
	for from := 0; ; {
		d, ok := nextDate(key, from)
		if !ok {
			break
		}
		last, dated, from = d, true, d.end
	}
	if !dated {
		return modified, false
	}
	if modified.Before(last.at) {
		return last.at, true
	}
	if end := last.at.Add(last.layout.span); modified.After(end) {
		return end, true
	}
	return modified, true
}

// folderSlack is how far the date of a folder may be from that of what is in it.
const folderSlack = time.Hour

// skipTo tells of a key that is from before since behind which key the listing may go on: up to there all have the
// same beginning and an older date.
func skipTo(key string, since time.Time) (after string, ok bool) {
	for from := 0; ; {
		d, found := nextDate(key, from)
		if !found {
			return "", false
		}
		when := since
		if d.layout.dir {
			when = since.Add(-folderSlack)
		}
		if want := when.UTC().Format(d.layout.text); key[d.start:d.end] < want {
			return key[:d.start] + want, true
		}
		from = d.end
	}
}

// isLog tells objects with lines from what else AWS writes beside them: the file by which a balancer tries
// whether it may write, and what a console makes as a folder.
func isLog(key string, size int64) bool {
	base := key[strings.LastIndexByte(key, '/')+1:]
	probe := strings.HasPrefix(base, "ELB") && strings.HasSuffix(base, "TestFile")
	return size > 0 && base != "" && !probe
}

// objectStream is the ID of an object's stream. Two inputs that reach one object have each its own. An object that is written again under its key is another. For
// keys without a date it holds the time of delivery, from which a listing goes on after a restart.
func objectStream(input, bucket, key, etag string, delivered time.Time) string {
	b := append([]byte("s3:"), input...)
	b = append(b, ':')
	b = append(b, bucket...)
	b = append(b, '/')
	b = append(b, key...)
	b = append(b, '#')
	b = strconv.AppendUint(b, xxhash.Sum64String(strings.Trim(etag, `"`)), 16)
	if !delivered.IsZero() {
		b = append(b, '@')
		b = strconv.AppendInt(b, delivered.Unix(), 16)
	}
	return string(b)
}

// streamTime gives the time that the ID of an object's stream tells.
func streamTime(id string) (time.Time, bool) {
	i := strings.LastIndexByte(id, '#')
	if i < 0 {
		return time.Time{}, false
	}
	if _, hex, ok := strings.Cut(id[i:], "@"); ok {
		sec, err := strconv.ParseInt(hex, 16, 64)
		return time.Unix(sec, 0), err == nil
	}
	return objectTime(id[:i], time.Time{})
}
