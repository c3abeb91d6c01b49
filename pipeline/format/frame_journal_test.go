package format

import (
	"strings"
	"testing"

	"github.com/squall-sre/squall/pipeline"
)

// The objects are those of journalctl 252; its keys come in any order.
func TestJournalFramer(t *testing.T) {
	const cursor = `"__CURSOR":"s=a89308498b2d42489d711c29f4162bd8;i=1f;b=b;m=3e8;t=64e1ec8bbcc00;x=96"`
	const at = int64(1774743984000102000)
	for _, c := range []struct {
		line, message string
		place, time   int64
		reason        pipeline.Reason
	}{
		{`{` + cursor + `,"MESSAGE":"plain","__REALTIME_TIMESTAMP":"1774743984000102"}`, "plain", 0x1f, at, ""},
		{`{"__REALTIME_TIMESTAMP":"1774743984000102","MESSAGE":"a \"b\"\nc",` + cursor + `}`, `a "b" c`, 0x1f, at, ""},
		{`{"MESSAGE":[98,105,10,110,0,255],"__REALTIME_TIMESTAMP":"1774743984000102",` + cursor + `}`, "bi n\x00\xff", 0x1f, at, ""},
		{`{"MESSAGE":"ends\n","__REALTIME_TIMESTAMP":"1774743984000102"}`, "ends", 7, at, ""},
		{`{"MESSAGE":"x","__CURSOR":"i=zz","__REALTIME_TIMESTAMP":"1774743984000102"}`, "x", 7, at, ""},
		{`{"MESSAGE":"Out of memory","_TRANSPORT":"kernel","__REALTIME_TIMESTAMP":"1774743984000102"}`, "kernel: Out of memory", 7, at, ""},
		{`{"MESSAGE":null,"__REALTIME_TIMESTAMP":"1774743984000102"}`, "", 7, 0, pipeline.ReasonEmpty},
		{`{"__REALTIME_TIMESTAMP":"1774743984000102"}`, "", 7, 0, pipeline.ReasonEmpty},
		{`{"MESSAGE":"x"}`, "", 7, 0, pipeline.ReasonMalformed},
		{`{"MESSAGE":"x","__REALTIME_TIMESTAMP":"9999999999999999999"}`, "", 7, 0, pipeline.ReasonMalformed},
		{`{"MESSAGE":[256],"__REALTIME_TIMESTAMP":"1774743984000102"}`, "", 7, 0, pipeline.ReasonBadJSON},
		{`{"MESSAGE":["a"],"__REALTIME_TIMESTAMP":"1774743984000102"}`, "", 7, 0, pipeline.ReasonBadJSON},
		{`{"MESSAGE":"x","__REALTIME_TIMESTAMP":"177474`, "", 7, 0, pipeline.ReasonTruncated},
		{`Mar 29 00:26:24 node-1 kubelet[1]: x`, "", 7, 0, pipeline.ReasonBadJSON},
		{``, "", 7, 0, pipeline.ReasonEmpty},
	} {
		got, place, time, reason := mustFramer(t, "journal").Next([]byte(c.line), 7)
		if string(got) != c.message || reason != c.reason || reason == "" && (place != c.place || time != c.time) {
			t.Errorf("%s: %q at %d, %d, %q", c.line, got, place, time, reason)
		}
	}
}

// A message that stands alone in its entry is read by the formats of its program.
func TestJournalFramerFeedsFormats(t *testing.T) {
	const front = `{"__CURSOR":"s=a;i=1","__REALTIME_TIMESTAMP":"1774743984000102","MESSAGE":"`
	for name, message := range map[string]string{
		"kubelet":    `I0329 00:26:24.310841    2480 kuberuntime_container.go:777] \"Killing container with a grace period\" pod=\"shop/web-1\" podUID=\"u\" containerName=\"php\" containerID=\"c\" gracePeriod=30`,
		"kernel_oom": `Out of memory: Killed process 7 (java) total-vm:1kB","_TRANSPORT":"kernel`,
		"php_fpm":    `WARNING: [pool www] server reached pm.max_children setting (5), consider raising it`,
	} {
		line, _, at, reason := mustFramer(t, "journal").Next([]byte(front+message+`"}`), 0)
		f, err := New(Config{Name: name})
		if err != nil || reason != "" {
			t.Fatal(err, reason)
		}
		item := pipeline.Item{FrameSet: true, Time: at}
		f.Parse(line, &item)
		if item.Kind != pipeline.IsEvents || len(item.Events) != 1 {
			t.Errorf("%s: %v %q", name, item.Kind, item.Reason)
			continue
		}
		if e := item.Events[0]; name == "kubelet" && !(e.Time == 1774743984310841000 && e.Pod == "web-1") {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

func TestJournalFramerAllocatesNothing(t *testing.T) {
	f := mustFramer(t, "journal")
	line := []byte(`{"__CURSOR":"s=a89308498b2d42489d711c29f4162bd8;i=1f","MESSAGE":"` + strings.Repeat("x", 200) + `","__REALTIME_TIMESTAMP":"1774743984000102"}`)
	if n := testing.AllocsPerRun(100, func() { f.Next(line, 0) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
