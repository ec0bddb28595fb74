package marker

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
)

// unmarked are the fields that wait for a gate although nothing beside them in
// upstream's source says so: only its strategies know.
var unmarked = map[reflect.Type]map[string]string{
	reflect.TypeFor[corev1.Lifecycle](): {"StopSignal": "ContainerStopSignals"},
}

// leaves are the types of which nothing is left, not an empty struct, when the
// fields that were cleared had been the only ones.
var leaves = map[reflect.Type]bool{reflect.TypeFor[corev1.Lifecycle](): true}

// withUnmarked adds to the table what it does not have.
func withUnmarked(all map[typeName]*marks) map[typeName]*marks {
	for t, fields := range unmarked {
		m := all[nameOf(t)]
		if m == nil {
			m = &marks{fields: map[string][]string{}}
			all[nameOf(t)] = m
		}
		for field, gate := range fields {
			m.fields[field] = append(m.fields[field], "@"+gate)
		}
	}
	return all
}
