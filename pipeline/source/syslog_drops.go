package source

import (
	"bytes"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// socketDrops gives a function that tells how many datagrams the kernel dropped at a socket since it was made. The socket
// is found in /proc/net by its inode; the count is the last column (Linux, net/ipv4/udp.c).
func socketDrops(conn *net.UDPConn) func() (int64, bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil
	}
	var inode []byte
	err = raw.Control(func(fd uintptr) {
		var st unix.Stat_t
		if unix.Fstat(int(fd), &st) == nil {
			inode = strconv.AppendUint(nil, st.Ino, 10)
		}
	})
	if err != nil || inode == nil {
		return nil
	}
	return func() (int64, bool) {
		for _, path := range [...]string{"/proc/self/net/udp", "/proc/self/net/udp6"} {
			table, err := os.ReadFile(path)
			if err != nil {
				continue
			}
			for line := range bytes.Lines(table) {
				columns := bytes.Fields(line)
				if len(columns) < 13 || !bytes.Equal(columns[9], inode) {
					continue
				}
				n, err := strconv.ParseInt(string(columns[12]), 10, 64)
				return n, err == nil
			}
		}
		return 0, false
	}
}
