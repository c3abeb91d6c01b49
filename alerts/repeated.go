package alerts

import (
	"fmt"
	"strings"

	"github.com/squall-sre/squall/detectors"
)

// Causes and advice where the origin is asked for what it made, or failed to make, just before: a cache that lost its
// entries, and clients that retry.

// oneAgent is the share of the requests from which a stampede is one agent's.
const oneAgent = 0.5

// crawler tells whether one agent makes most of the requests of a stampede, with its share.
func crawler(e *detectors.Evidence) (share float64, ok bool) {
	if len(e.TopAgents) == 0 || !(e.Requests.Get() > 0) || !(e.DistinctAgents.Get() > 1) {
		return 0, false
	}
	share = e.TopAgents[0].Count / e.Requests.Get()
	return share, share >= oneAgent && share <= 1
}

func stampedeCause(f *facts) Cause {
	e := f.stampede
	text := fmt.Sprintf("%s requests a minute missed the cache, %s of all", short(e.MissesPerMinute.Get()), percent(e.MissShare.Get()))
	if e.UsualMissesPerMinute.Known() {
		text += fmt.Sprintf("; usual are %s a minute, %s", rate(e.UsualMissesPerMinute.Get()), percent(e.UsualMissShare.Get()))
	}
	if e.MissedURLs.Known() {
		text += "; " + urls(e)
		if e.RepeatFactor.Known() {
			text += fmt.Sprintf(", on average asked for %s times", short(e.RepeatFactor.Get()))
		}
	}
	missing := []string{"what expired or cleared the cache: its own log, deploys and saves in the administration at that time"}
	share, one := crawler(e)
	switch {
	case e.TTLSeconds.Known():
		return Cause{Probable, text + fmt.Sprintf("; such bursts come every ≈%s s, consistent with entries that are made together and expire together: a TTL of ≈%s s",
			short(e.TTLSeconds.Get()), short(e.TTLSeconds.Get())), []string{"the TTL as configured"}}
	case one:
		return Cause{Probable, text + fmt.Sprintf("; one agent makes %s of the requests to these routes: consistent with a crawl after a clear",
			percent(share)), missing}
	}
	return Cause{Probable, text + "; entries of many pages went at once: expired together, or cleared", missing}
}

// urls is how many were missed.
func urls(e *detectors.Evidence) string {
	if e.MissedURLs.Get() == 1 {
		return "1 URL"
	}
	return approx(e.MissedURLs.Get()) + " URLs"
}

const staleSnippet = `proxy_cache_use_stale updating error timeout;   # fastcgi_cache_… where PHP is behind nginx itself
proxy_cache_background_update on;
proxy_cache_lock on;                            # one request an entry goes to the origin
# and for the CDN, from the application:
# Cache-Control: public, max-age=1800, stale-while-revalidate=600`

func adviseStampede(f *facts) []option {
	e := f.stampede
	why := short(e.MissesPerMinute.Get()) + " misses a minute"
	if e.MissedURLs.Known() {
		why += " for " + urls(e)
	}
	options := []option{{Advice{
		Layer:   layerCDN,
		Text:    "serve stale while revalidating, let one request an entry go to the origin, and spread the TTL by a tenth at random so that entries do not expire together. " + why,
		Snippet: staleSnippet,
		Verify:  "at the next expiry the log must show STALE or UPDATING instead of MISS and EXPIRED",
	}, []string{"stale_while_revalidate", "cache_lock"}}}
	if share, one := crawler(e); one && !e.TTLSeconds.Known() {
		options = append(options, option{Advice{
			Layer:  layerApplication,
			Text:   fmt.Sprintf("clear by URL instead of everything, and let crawls wait for a warm cache, at 5 to 10 pages a second: one agent makes %s of the requests", percent(share)),
			Verify: "after a save the misses must be those of the pages it changed",
		}, nil})
	}
	return options
}

func retryCause(f *facts) Cause {
	e := f.retry
	who := "clients ask"
	switch {
	case e.RetryingClients.Get() == 1:
		who = "one client asks"
	case e.RetryingClients.Known():
		who = short(e.RetryingClients.Get()) + " clients ask"
	}
	text := strings.TrimSpace(fmt.Sprintf("%s for %s %s", who, e.Method, routeIn(e))) + " again within seconds of its own timeout" + tries(e, ": %s times")
	if e.WorkerSecondsShare.Known() {
		text += fmt.Sprintf("; the route holds %s of the worker-seconds", percent(e.WorkerSecondsShare.Get()))
	}
	return Cause{Probable, text + "; consistent with a retry loop in the application that calls",
		[]string{"the calling application's own log: whether a program or a person repeats the request"}}
}

// tries writes how many there were and how often, "" where it is not known.
func tries(e *detectors.Evidence, format string) string {
	if !e.Retries.Known() {
		return ""
	}
	text := fmt.Sprintf(format, short(e.Retries.Get()))
	if e.PeriodSeconds.Known() {
		text += fmt.Sprintf(", one every %s s", short(e.PeriodSeconds.Get()))
	}
	return text
}

func adviseRetry(f *facts) []option {
	e := f.retry
	return []option{{Advice{
		Layer: layerApplication,
		Text: fmt.Sprintf("for the application's owner, no page: bound the retries of %s (exponential backoff with jitter, a last try), give its query a timeout below the caller's, and make it cheap", routeIn(e)) +
			tries(e, ": %s tries came to nothing"),
		Snippet: "# php-fpm, to see where it waits\nrequest_slowlog_timeout = 3s\nslowlog = /var/log/php-fpm/slow.log",
		Verify:  "retry_loop must end, and the route's p99_seconds fall below the caller's timeout",
	}, nil}}
}
