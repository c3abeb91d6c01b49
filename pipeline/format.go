package pipeline

// ItemKind tells what a line was.
type ItemKind uint8

// The kinds of Item.
const (
	Failed ItemKind = iota // no Record and no Event: Reason says why
	IsRecord
	IsEvents
	Ignored // understood and of no interest: a controller's own message, a comment, a header
)

// An Item is what became of one line. A Format fills it; it is recycled, so that parsing allocates nothing.
type Item struct {
	Kind   ItemKind
	Record Record
	Events []Event
	Reason Reason // why Failed
	Column int    // for Failed: the byte in the line at which it stopped fitting, from 0
	Rest   []byte // the end of a line that holds several records, from the next of them on; nil: nothing is left

	// Set by the road.
	Line     []byte // the logical line, without its line end, framing removed
	Offset   int64  // of its first byte in the stream
	Number   int    // of its last physical line within the block, from 1
	FrameSet bool   // the framing carried a time
	Time     int64  // ns since the epoch: the record's, else the frame's, else the stream's last; 0: none yet
	Late     bool   // its pane had been closed: shipped, not detected
}

// Reset makes the item ready for another line.
func (i *Item) Reset() {
	// Field by field: a literal of the whole struct is made beside it and copied, which costs more than a line's parsing
	// of a field.
	i.Kind, i.Events, i.Reason, i.Column, i.Rest = Failed, i.Events[:0], ReasonNone, 0, nil
	i.Line, i.Offset, i.Number, i.FrameSet, i.Time, i.Late = nil, 0, 0, false, 0, false
	i.Record.Reset()
}

// Reason is why a line could not be parsed: a bounded set, used as a metric's label.
type Reason string

// The reasons.
const (
	ReasonNone      Reason = ""
	ReasonEmpty     Reason = "empty"
	ReasonTruncated Reason = "truncated"
	ReasonPartial   Reason = "partial"
	ReasonMalformed Reason = "malformed"
	ReasonBadJSON   Reason = "bad_json"
	ReasonBadTime   Reason = "bad_time"
	ReasonFields    Reason = "field_count"
	ReasonNotAccess Reason = "not_access_log"
	ReasonNoFormat  Reason = "no_format" // auto: no format fits
	ReasonBinary    Reason = "binary"
	ReasonTooLong   Reason = "too_long"
)

// Reasons lists every reason, for metrics that start at 0.
var Reasons = []Reason{
	ReasonEmpty, ReasonTruncated, ReasonPartial, ReasonMalformed, ReasonBadJSON, ReasonBadTime, ReasonFields,
	ReasonNotAccess, ReasonNoFormat, ReasonBinary, ReasonTooLong,
}

// A Format parses the lines of one stream. It belongs to one goroutine: it may keep scratch memory and a
// cache of the last second, and what it put into an Item holds until its next Parse of the same Item.
type Format interface {
	// Parse fills item from line, which holds no line end. It never fails otherwise than by setting
	// item.Kind to Failed and item.Reason; it keeps nothing of line but what item holds. item was Reset.
	// When it sets item.Rest, the item stands for the bytes before, and Rest is parsed as a line of its own.
	Parse(line []byte, item *Item)
}

// A Framer takes off what a container runtime wrapped around a line, and joins the parts of a split line.
// It belongs to one goroutine.
type Framer interface {
	// Next takes one physical line that begins at offset. It returns the logical line when one is complete,
	// with the time that the frame carries (ns since the epoch, 0 for none), or a Reason when the line is no
	// frame. No line and no reason: more parts are to come. The line holds until the next call of Next.
	Next(physical []byte, offset int64) (line []byte, start int64, time int64, reason Reason)
	// Flush returns a line whose last part never came: at the end of a stream or after a timeout. It is
	// called until ok is false.
	Flush() (line []byte, start int64, time int64, ok bool)
	// Pending gives the offset of the earliest part that waits for its end.
	Pending() (offset int64, waiting bool)
}

// An Enricher adds to a Record what is known from configuration. It is safe for concurrent use, allocates
// nothing for what it has seen before, and its memory is bounded.
type Enricher interface {
	Enrich(r *Record)
}

// A Redactor takes out of a line what must not be stored. It is safe for concurrent use.
type Redactor interface {
	// Line returns the line as it may be stored: valid UTF-8, at most MaxLine bytes. It is line itself when nothing
	// had to change, else it is built in dst's memory where that is large enough. r is nil for what is no Record.
	Line(dst, line []byte, r *Record) []byte
}
