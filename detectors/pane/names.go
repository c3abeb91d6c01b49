package pane

// names remembers the agents that came lately: those of one pane are those of the next, and of many cells. They are made
// into strings once, and equal ones are found to be so by their address alone. A flood of new ones pushes out those that
// come seldom, and costs no memory beyond the table.
type names [nameSets][nameWays]struct {
	hash uint64
	name string
}

const (
	nameSets = 1 << 10
	nameWays = 4
)

// intern gives the string of a name.
func (n *names) intern(name []byte, hash uint64) string {
	set := &n[hash%nameSets]
	for i := range set {
		if set[i].hash == hash && set[i].name == string(name) {
			if i > 0 {
				set[i-1], set[i] = set[i], set[i-1]
				i--
			}
			return set[i].name
		}
	}
	last := &set[nameWays-1]
	last.hash, last.name = hash, string(name)
	return last.name
}
