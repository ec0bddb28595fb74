package podnet

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// conflistName sorts first: a runtime takes the first file of the directory.
const conflistName = "10-proa.conflist"

type object = map[string]any

// conflist is the CNI network of the node, named after its bridge.
func (n *Network) conflist(mtu int) ([]byte, error) {
	low, high := halves(n.c.CIDR)
	gateway := n.Gateway().String()
	bridge := object{
		"type": "bridge", "bridge": n.c.Bridge, "isGateway": true, "isDefaultGateway": true,
		"hairpinMode": true, "ipMasq": false, "mtu": mtu,
		"ipam": object{
			"type": "host-local", "dataDir": n.c.StateDir,
			"ranges": [][]object{{{"subnet": n.c.CIDR.String(), "gateway": gateway}}},
			"routes": []object{{"dst": low.String(), "gw": gateway}, {"dst": high.String(), "gw": gateway}},
		},
	}
	return json.MarshalIndent(object{"cniVersion": "1.0.0", "name": n.c.Bridge, "plugins": []object{bridge}}, "", "  ")
}

// halves splits p into the two ranges that are one bit longer.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	raw := p.Addr().As4()
	raw[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	return netip.PrefixFrom(p.Addr(), p.Bits()+1), netip.PrefixFrom(netip.AddrFrom4(raw), p.Bits()+1)
}

// writeConflist puts the configuration in place in one step, and only when it
// changed: the runtime reloads what it sees change.
func (n *Network) writeConflist(mtu int) error {
	want, err := n.conflist(mtu)
	if err != nil {
		return err
	}
	path := filepath.Join(n.c.CNIDir, conflistName)
	have, err := os.ReadFile(path)
	if err == nil && bytes.Equal(have, want) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(n.c.CNIDir, 0o755); err != nil {
		return err
	}
	// containerd looks when a file of this directory is renamed, not when one comes into it.
	return renameio.WriteFile(path, want, 0o644, renameio.WithTempDir(n.c.CNIDir))
}
