package source

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
)

// TestAheadIsWhatIsUnpacked: the bytes and the error are those of the archive, whatever the pieces.
func TestAheadIsWhatIsUnpacked(t *testing.T) {
	data := []byte(text(number(0, 800)))
	packed := gzipped(t, data)
	whole, torn := logPath(t), logPath(t)
	write(t, whole, packed)
	write(t, torn, packed[:len(packed)/2])
	for _, path := range []string{whole, torn} {
		in, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		want, wantErr := io.ReadAll(in)
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		for _, piece := range []int{1, 7, 4096, 1 << 20} {
			in, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			r := Ahead(in, piece)
			if r == in {
				t.Fatal("an archive is read as it is")
			}
			got, err := io.ReadAll(r)
			if !bytes.Equal(got, want) || !errors.Is(err, wantErr) {
				t.Errorf("pieces of %d: %d bytes and %v instead of %d and %v", piece, len(got), err, len(want), wantErr)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestAheadEnds: whoever reads no further gets its descriptor back, and a plain file is left alone.
func TestAheadEnds(t *testing.T) {
	packed := logPath(t)
	write(t, packed, gzipped(t, []byte(text(number(0, 800)))))
	for _, read := range []int{0, 1, 100} {
		in, err := Open(packed)
		if err != nil {
			t.Fatal(err)
		}
		r := Ahead(in, 64)
		if _, err := io.CopyN(io.Discard, r, int64(read)); err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := in.Close(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("after %d bytes the file is open: %v", read, err)
		}
	}
	path := logPath(t)
	write(t, path, "a line\n")
	in, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if Ahead(in, 64) != in {
		t.Error("a plain file is read ahead")
	}
}
