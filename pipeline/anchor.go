package pipeline

import "github.com/cespare/xxhash/v2"

// An Anchor proves that a stream goes on at an offset: it is a hash of the bytes right before it, and in its lowest
// anchorBits how many they are. 0: not known.
type Anchor uint64

// MaxAnchor is how many bytes make an Anchor, at most.
const MaxAnchor = 1 << 10

const anchorBits = 11

// AnchorOf makes the Anchor of the offset that before ends at.
func AnchorOf(before []byte) Anchor {
	before = before[max(0, len(before)-MaxAnchor):]
	if len(before) == 0 {
		return 0
	}
	return Anchor(xxhash.Sum64(before)<<anchorBits | uint64(len(before)))
}

// Len is how many bytes it was made of.
func (a Anchor) Len() int { return int(a & (1<<anchorBits - 1)) }

// Holds tells whether before, at least Len bytes, ends as it should.
func (a Anchor) Holds(before []byte) bool {
	return len(before) >= a.Len() && AnchorOf(before[len(before)-a.Len():]) == a
}
