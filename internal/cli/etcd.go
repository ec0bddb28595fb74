package cli

import "go.etcd.io/etcd/server/v3/etcdmain"

// runEtcd is the real etcd server with its own flags, for tests and clusters that
// bring no other. It ends the process itself when it is told to stop.
func runEtcd(args []string) int {
	etcdmain.Main(args)
	return 0
}
