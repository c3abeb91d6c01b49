package pane

// names remembers texts that were keys of a Top lately. The agents and addresses of one pane are those of the next, and
// of many cells: they are made into strings once, and equal ones are found to be so by their address alone. A flood of
// new ones pushes others out, and costs no memory beyond the table.
type names [nameSlots]string

const nameSlots = 1 << 12

// find gives the string of a key, if it is remembered.
func (n *names) find(key []byte, hash uint64) (name string, ok bool) {
	name = n[hash%nameSlots]
	return name, name == string(key)
}

// count adds one to the key in all of the tops.
func (n *names) count(key []byte, hash uint64, tops ...*Top) {
	name, known := n.find(key, hash)
	for _, t := range tops {
		switch {
		case t == nil:
		case known:
			t.addString(name, hash, 1)
		case t.addKnown(key, hash, 1):
		default:
			name, known = string(key), true
			n[hash%nameSlots] = name
			t.addNew(name, hash, 1)
		}
	}
}
