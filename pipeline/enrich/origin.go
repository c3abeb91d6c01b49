package enrich

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/gaissmai/bart"

	"github.com/squall-sre/squall/pipeline"
)

// origins tells own and allowed addresses apart from all others. The longest prefix wins, so that an office
// within 10.0.0.0/8 can be allowed while the rest of it is own.
type origins struct {
	table   *bart.Fast[originEntry]
	allowed []string // names
}

type originEntry struct {
	origin  pipeline.Origin
	allowed int // index of the name
}

func newOrigins(cfg Config) (*origins, error) {
	o := &origins{table: new(bart.Fast[originEntry])}
	var errs []error
	for i, s := range cfg.Own.Addresses {
		p, err := parsePrefix(s)
		if err != nil {
			errs = append(errs, configError(err, "own.addresses[%d]", i))
			continue
		}
		o.table.Insert(p, originEntry{origin: pipeline.Own})
	}
	names := map[string]int{}
	for i, a := range cfg.Allowed {
		if a.Name == "" {
			errs = append(errs, configError(errors.New("a range needs a name, such as office"), "allowed[%d].name", i))
		}
		if first, ok := names[a.Name]; ok {
			errs = append(errs, configError(fmt.Errorf("%q is already the name of allowed[%d]", a.Name, first), "allowed[%d].name", i))
		}
		names[a.Name] = i
		o.allowed = append(o.allowed, a.Name)
		for j, s := range a.Addresses {
			p, err := parsePrefix(s)
			if err == nil {
				if e, ok := o.table.Get(p); ok {
					where := "own.addresses"
					if e.origin == pipeline.Allowed {
						where = fmt.Sprintf("allowed[%d]", e.allowed)
					}
					err = fmt.Errorf("%s is already in %s", p, where)
				}
			}
			if err != nil {
				errs = append(errs, configError(err, "allowed[%d].addresses[%d]", i, j))
				continue
			}
			o.table.Insert(p, originEntry{origin: pipeline.Allowed, allowed: i})
		}
	}
	if cfg.Own.Interfaces {
		for _, p := range cfg.Interfaces {
			o.table.Insert(p.Masked(), originEntry{origin: pipeline.Own})
		}
	}
	return o, errors.Join(errs...)
}

// of tells whose address a is; an invalid one is a stranger's.
func (o *origins) of(a netip.Addr) pipeline.Origin {
	e, ok := o.table.Lookup(a)
	if !ok {
		return pipeline.External
	}
	return e.origin
}

func (o *origins) allowedName(a netip.Addr) (string, bool) {
	e, ok := o.table.Lookup(a)
	if !ok || e.origin != pipeline.Allowed {
		return "", false
	}
	return o.allowed[e.allowed], true
}

// InterfacePrefixes lists the addresses of this machine's interfaces, each as a prefix of one address: the
// neighbours in the interface's network are not own. Loopback and link-local addresses are left out, for what
// comes from there is a proxy or a test on this machine and says nothing about a site calling itself; who wants
// them to count lists them under own.addresses.
func InterfacePrefixes() ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces' addresses: %w", err)
	}
	var out []netip.Prefix
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		ip := p.Addr().Unmap()
		if ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() || ip.IsMulticast() {
			continue
		}
		out = append(out, netip.PrefixFrom(ip.WithZone(""), ip.BitLen()))
	}
	return out, nil
}
