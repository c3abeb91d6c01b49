package pipeline

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ByteSize is a number of bytes that configuration writes as 512, 64KiB, 2GiB or 1MB.
type ByteSize int64

var byteUnits = []struct {
	suffix string
	factor int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
}

// UnmarshalText reads a size with or without a unit.
func (b *ByteSize) UnmarshalText(text []byte) error {
	s, factor := strings.TrimSpace(string(text)), int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			s, factor = strings.TrimSpace(rest), u.factor
			break
		}
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || n < 0 {
		return fmt.Errorf("%q is not a size: write a number and KiB, MiB or GiB", text)
	}
	*b = ByteSize(n * float64(factor))
	return nil
}

// MarshalText writes the size with the largest binary unit that divides it.
func (b ByteSize) MarshalText() ([]byte, error) {
	for i := 3; i >= 0; i-- {
		if u := byteUnits[i]; int64(b) >= u.factor && int64(b)%u.factor == 0 {
			return fmt.Appendf(nil, "%d%s", int64(b)/u.factor, u.suffix), nil
		}
	}
	return strconv.AppendInt(nil, int64(b), 10), nil
}

// ParseZone reads a time zone: UTC, an IANA name such as Europe/Berlin, or a fixed offset such as +0200.
func ParseZone(s string) (*time.Location, error) {
	if s == "" {
		return time.UTC, nil
	}
	if s[0] == '+' || s[0] == '-' {
		t, err := time.Parse("-0700", strings.Replace(s, ":", "", 1))
		if err != nil {
			return nil, fmt.Errorf("%q is not a zone: write an IANA name or +hhmm", s)
		}
		_, offset := t.Zone()
		return time.FixedZone(s, offset), nil
	}
	loc, err := time.LoadLocation(s)
	if err != nil {
		return nil, fmt.Errorf("%q is not a zone: write an IANA name or +hhmm", s)
	}
	return loc, nil
}
