package simulate

import (
	"strconv"
	"strings"
	"time"
)

// awsWAF writes the log of AWS WAF with the filter that keeps what was blocked: of a storm that is answered at the
// edge. The time is the request's.
type awsWAF struct{}

func newAWSWAF(*time.Location) writer { return awsWAF{} }

func (awsWAF) logs(r *request) bool { return r.kind == storm && r.layer == Edge && r.cache == "" }

func (awsWAF) status(*request) int { return 403 }

func (awsWAF) append(dst []byte, r *request) []byte {
	path, query, _ := strings.Cut(r.url.path, "?")
	dst = append(dst, `{"timestamp":`...)
	dst = strconv.AppendInt(dst, r.arrival/1e6, 10)
	dst = append(dst, `,"formatVersion":1,"webaclId":"arn:aws:wafv2:eu-west-1:123456789012:regional/webacl/shop/1","terminatingRuleId":"head-on-checkout",`+
		`"terminatingRuleType":"REGULAR","action":"BLOCK","terminatingRuleMatchDetails":[],"httpSourceName":"ALB","httpSourceId":"123456789012-app/shop/1",`+
		`"ruleGroupList":[],"rateBasedRuleList":[],"nonTerminatingMatchingRules":[],"responseCodeSent":200,"httpRequest":{"clientIp":"`...)
	dst = append(dst, r.client...)
	dst = append(dst, `","country":"IE","headers":[{"name":"Host","value":"`...)
	dst = append(dst, r.site.Host...)
	dst = append(dst, `"},{"name":"User-Agent","value":"`...)
	dst = append(dst, r.agent...)
	dst = append(dst, `"}],"uri":"`...)
	dst = append(dst, path...)
	dst = append(dst, `","args":"`...)
	dst = append(dst, query...)
	dst = append(dst, `","httpVersion":"HTTP/1.1","httpMethod":"`...)
	dst = append(dst, r.method...)
	dst = append(dst, `","requestId":"1-`...)
	dst = appendHex(dst, r.random(4), 16)
	return append(dst, "\"}}\n"...)
}
