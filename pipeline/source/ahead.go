package source

import "io"

// Ahead unpacks an archive in a goroutine of its own, a piece ahead of who reads it, so that a second processor takes
// part: unpacking costs as much as all that follows. Of a plain file nothing is gained, and in is given back. Closing it
// ends the goroutine and closes in.
func Ahead(in io.ReadCloser, piece int) io.ReadCloser {
	if _, packed := in.(*archive); !packed {
		return in
	}
	a := &ahead{in: in, full: make(chan unpackedPiece), free: make(chan []byte, 2), stop: make(chan struct{}), done: make(chan struct{})}
	for range cap(a.free) {
		a.free <- make([]byte, piece)
	}
	go a.run()
	return a
}

// ahead hands pieces of memory round: one is read from while the other is filled.
type ahead struct {
	in   io.ReadCloser
	full chan unpackedPiece
	free chan []byte
	stop chan struct{}
	done chan struct{}

	// Of the goroutine that reads.
	piece unpackedPiece
	at    int
}

type unpackedPiece struct {
	data []byte
	err  error // behind the data
}

func (a *ahead) run() {
	defer close(a.done)
	defer close(a.full)
	for {
		var buf []byte
		select {
		case buf = <-a.free:
		case <-a.stop:
			return
		}
		n, err := fill(a.in, buf)
		select {
		case a.full <- unpackedPiece{buf[:n], err}:
		case <-a.stop:
			return
		}
		if err != nil {
			return
		}
	}
}

// Read implements io.Reader.
func (a *ahead) Read(p []byte) (int, error) {
	for a.at == len(a.piece.data) {
		if a.piece.err != nil {
			return 0, a.piece.err
		}
		if a.piece.data != nil {
			a.free <- a.piece.data[:cap(a.piece.data)]
		}
		a.piece, a.at = <-a.full, 0
	}
	n := copy(p, a.piece.data[a.at:])
	a.at += n
	return n, nil
}

// Close implements io.Closer.
func (a *ahead) Close() error {
	close(a.stop)
	<-a.done
	return a.in.Close()
}
