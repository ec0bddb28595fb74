package resource

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func texts(errs field.ErrorList) []string {
	var out []string
	for _, e := range errs {
		out = append(out, e.Error())
	}
	return out
}

func sliceOf(devices ...resourcev1.Device) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{
		Driver: "d.example.com", Pool: resourcev1.ResourcePool{Name: "p", ResourceSliceCount: 1}, AllNodes: new(true), Devices: devices,
	}}
}

// many returns n devices, each made by f.
func many(n int, f func(*resourcev1.Device)) []resourcev1.Device {
	list := make([]resourcev1.Device, n)
	for i := range list {
		list[i].Name = fmt.Sprintf("d%d", i)
		f(&list[i])
	}
	return list
}

type (
	attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute
	capacities = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity
	own        = map[corev1.ResourceName]resourcev1.NodeAllocatableResource
)

func TestDevicesOfSlices(t *testing.T) {
	q := func(s string) *resource.Quantity { return new(resource.MustParse(s)) }
	consumes := []resourcev1.DeviceCounterConsumption{{CounterSet: "cs", Counters: map[string]resourcev1.Counter{"m": {}}}}
	counters := map[string]resourcev1.Counter{}
	for i := range 33 {
		counters[fmt.Sprintf("c%d", i)] = resourcev1.Counter{}
	}
	long := "x" + strings.Repeat("y", 63)
	const device = "spec.devices[0]"
	tests := []struct {
		name   string
		device resourcev1.Device
		want   []string
	}{
		{"lists of values", resourcev1.Device{Attributes: attributes{
			"a": {BoolValues: []bool{true}}, "b": {IntValues: []int64{1, 2}}, "c": {StringValues: []string{""}}, "d": {VersionValues: []string{"1.2.3"}},
		}}, nil},
		{"empty lists", resourcev1.Device{Attributes: attributes{
			"a": {BoolValues: []bool{}}, "b": {IntValues: []int64{}}, "c": {StringValues: []string{}}, "d": {VersionValues: []string{}},
		}}, []string{
			device + `.attributes[a].bools: Invalid value: []: must not be empty if specified`,
			device + `.attributes[b].ints: Invalid value: []: must not be empty if specified`,
			device + `.attributes[c].strings: Invalid value: []: must not be empty if specified`,
			device + `.attributes[d].versions: Invalid value: []: must not be empty if specified`,
		}},
		{"wrong items", resourcev1.Device{Attributes: attributes{
			"a": {StringValues: []string{"x", long + "z"}}, "b": {VersionValues: []string{"v1"}},
		}}, []string{
			device + `.attributes[a].strings[1]: Too long: may not be more than 64 bytes`,
			device + `.attributes[b].versions[0]: Invalid value: "v1": must be a string compatible with semver.org spec 2.0.0`,
		}},
		{"more values than 48", resourcev1.Device{Attributes: attributes{"a": {IntValues: make([]int64, 48)}, "b": {IntValue: new(int64(1))}}},
			[]string{device + `: Invalid value: 49: the total number of attribute values must not exceed 48`}},
		{"a name too long to be shown", resourcev1.Device{Attributes: attributes{resourcev1.QualifiedName(long + long): {StringValues: []string{}}}}, []string{
			device + `.attributes: Too long: may not be more than 32 bytes`,
			device + `.attributes[` + (long + long)[:47] + `...` + long[:0] + strings.Repeat("y", 46) + `].strings: Invalid value: []: must not be empty if specified`,
		}},
		{"more taints than 16", resourcev1.Device{Taints: make([]resourcev1.DeviceTaint, 17)},
			[]string{device + `.taints: Too many: 17: must have at most 16 items`}},
		{"more counters than 32", resourcev1.Device{ConsumesCounters: []resourcev1.DeviceCounterConsumption{{CounterSet: "cs", Counters: counters}}},
			[]string{device + `.consumesCounters[0].counters: Too many: 33: must have at most 32 items`}},
		{"conditions of binding", resourcev1.Device{BindingConditions: []string{"a", "b"}, BindingFailureConditions: []string{"c"}}, nil},
		{"success alone", resourcev1.Device{BindingConditions: []string{"a"}},
			[]string{device + `.bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use bindingConditions`}},
		{"failure alone", resourcev1.Device{BindingFailureConditions: []string{"a"}},
			[]string{device + `.bindingConditions: Invalid value: null: bindingConditions are required to use bindingFailureConditions`}},
		{"conditions twice", resourcev1.Device{BindingConditions: []string{"a", "a"}, BindingFailureConditions: []string{"b", "b", "a"}}, []string{
			device + `.bindingConditions[1]: Duplicate value: "a"`,
			device + `.bindingFailureConditions[1]: Duplicate value: "b"`,
			device + `.bindingFailureConditions[2]: Invalid value: "a": bindingFailureConditions must not overlap with bindingConditions`,
		}},
		{"too many conditions", resourcev1.Device{BindingConditions: []string{"a", "b", "c", "d", "e"}, BindingFailureConditions: []string{"f"}},
			[]string{device + `.bindingConditions: Too many: 5: must have at most 4 items`}},
		{"resources of the node", resourcev1.Device{Capacity: capacities{"cores": {Value: *q("4")}}, NodeAllocatableResources: own{
			"cpu":           {Mapping: &resourcev1.NodeAllocatableMapping{CapacityKey: new(resourcev1.QualifiedName("cores")), CapacityMultiplier: q("2")}},
			"hugepages-2Mi": {Mapping: &resourcev1.NodeAllocatableMapping{DeviceMultiplier: q("2Mi")}},
			"memory":        {Overhead: &resourcev1.NodeAllocatableOverhead{PerPod: q("0")}},
		}}, nil},
		{"wrong resources of the node", resourcev1.Device{Capacity: capacities{"cores": {Value: *q("4")}}, NodeAllocatableResources: own{
			"cpu":               {Mapping: &resourcev1.NodeAllocatableMapping{CapacityKey: new(resourcev1.QualifiedName("none"))}},
			"ephemeral-storage": {},
			"hugepages-1Gi":     {Mapping: &resourcev1.NodeAllocatableMapping{CapacityKey: new(resourcev1.QualifiedName("")), CapacityMultiplier: q("0")}},
			"hugepages-2Mi":     {Mapping: &resourcev1.NodeAllocatableMapping{CapacityMultiplier: q("1"), DeviceMultiplier: q("-1")}, Overhead: &resourcev1.NodeAllocatableOverhead{}},
			"memory":            {Overhead: &resourcev1.NodeAllocatableOverhead{PerPod: q("-1"), PerContainer: q("-2")}},
		}}, []string{
			device + `.nodeAllocatableResources[cpu].mapping.capacityKey: Not found: "none"`,
			device + `.nodeAllocatableResources[cpu].mapping.capacityMultiplier: Required value: capacityMultiplier is required when capacityKey is set`,
			device + `.nodeAllocatableResources[ephemeral-storage]: Invalid value: "ephemeral-storage": must be a node allocatable resource name`,
			device + `.nodeAllocatableResources[ephemeral-storage]: Required value: at least one of mapping or overhead must be set`,
			device + `.nodeAllocatableResources[hugepages-1Gi].mapping.capacityKey: Invalid value: "": capacityKey must not be an empty string`,
			device + `.nodeAllocatableResources[hugepages-1Gi].mapping.capacityMultiplier: Invalid value: "0": must be positive`,
			device + `.nodeAllocatableResources[hugepages-2Mi].mapping.deviceMultiplier: Invalid value: "-1": must be positive`,
			device + `.nodeAllocatableResources[hugepages-2Mi].mapping.capacityKey: Required value: capacityKey is required when capacityMultiplier is set`,
			device + `.nodeAllocatableResources[hugepages-2Mi].overhead: Invalid value: "": at least one of perPod or perContainer must be set`,
			device + `.nodeAllocatableResources[memory].overhead.perPod: Invalid value: "-1": must be non-negative`,
			device + `.nodeAllocatableResources[memory].overhead.perContainer: Invalid value: "-2": must be non-negative`,
		}},
		{"consumed counters", resourcev1.Device{ConsumesCounters: consumes}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.device.Name = "d"
			if d := cmp.Diff(tt.want, texts(validateSlice(sliceOf(tt.device)))); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestDevicesAreFewerWithMoreToSay(t *testing.T) {
	tests := []struct {
		name string
		n    int
		each func(*resourcev1.Device)
		want []string
	}{
		{"128 plain ones", 128, func(*resourcev1.Device) {}, nil},
		{"129 plain ones", 129, func(*resourcev1.Device) {}, []string{"spec.devices: Too many: 129: must have at most 128 items"}},
		{"65 with a list", 65, func(d *resourcev1.Device) { d.Attributes = attributes{"a": {BoolValues: []bool{true}}} },
			[]string{"spec.devices: Too many: 65: must have at most 64 items"}},
		{"65 with counters", 65, func(d *resourcev1.Device) {
			d.ConsumesCounters = []resourcev1.DeviceCounterConsumption{{CounterSet: "cs"}}
		}, []string{"spec.devices: Too many: 65: must have at most 64 items"}},
		{"65 with taints", 65, func(d *resourcev1.Device) { d.Taints = make([]resourcev1.DeviceTaint, 1) },
			[]string{"spec.devices: Too many: 65: must have at most 64 items"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, texts(validateSlice(sliceOf(many(tt.n, tt.each)...)))); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestOperationsThatAreSkipped(t *testing.T) {
	const refused = "spec.skipNodeOperations: Invalid value: [\"NodePrepareResources\"]: NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped"
	tests := []struct {
		skipped []resourcev1.SkipNodeOperation
		want    []string
	}{
		{nil, nil},
		{[]resourcev1.SkipNodeOperation{"NodePrepareResources"}, []string{refused}},
		{[]resourcev1.SkipNodeOperation{"NodeUnprepareResources"}, nil},
		{[]resourcev1.SkipNodeOperation{"NodeUnprepareResources", "NodePrepareResources"}, nil},
		{[]resourcev1.SkipNodeOperation{"NodePrepareResources", "*"}, nil},
	}
	for _, tt := range tests {
		s := sliceOf()
		s.Spec.SkipNodeOperations = tt.skipped
		if d := cmp.Diff(tt.want, texts(validateSlice(s))); d != "" {
			t.Errorf("%v (-want +got):\n%s", tt.skipped, d)
		}
	}
}

func TestPartitionTypes(t *testing.T) {
	consumer := func(a attributes) resourcev1.Device {
		return resourcev1.Device{Name: "d", Attributes: a, ConsumesCounters: []resourcev1.DeviceCounterConsumption{{CounterSet: "cs"}}}
	}
	tests := []struct {
		name      string
		attribute resourcev1.FullyQualifiedName
		device    resourcev1.Device
		want      []string
	}{
		{"by its whole name", "x.example.com/type", consumer(attributes{"x.example.com/type": {StringValue: new("half")}}), nil},
		{"without the driver's domain", "d.example.com/type", consumer(attributes{"type": {StringValue: new("half")}}), nil},
		{"without another's domain", "x.example.com/type", consumer(attributes{"type": {StringValue: new("half")}}),
			[]string{"spec.devices[0].attributes[x.example.com/type]: Required value: device consumes counters and `partitionTypeAttribute` names this attribute, so it must be set"}},
		{"no string", "d.example.com/type", consumer(attributes{"type": {BoolValue: new(true)}}),
			[]string{"spec.devices[0].attributes[d.example.com/type]: Invalid value: {\"bool\":true}: must be a string value because `partitionTypeAttribute` names this attribute"}},
		{"no partitions", "d.example.com/type", resourcev1.Device{Name: "d"},
			[]string{"spec.partitionTypeAttribute: Invalid value: \"d.example.com/type\": may only be set on a slice which declares devices that consume counters"}},
		{"a name that a marker refuses", "type", consumer(nil), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := sliceOf(tt.device)
			s.Spec.PartitionTypeAttribute = &tt.attribute
			if d := cmp.Diff(tt.want, texts(validateSlice(s))); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestDerivedAttributes(t *testing.T) {
	const at = "spec.devices.requests[0].exactly.derivedAttributes"
	plain := resourcev1.DeviceDerivedAttribute{Name: "x.example.com/a", Expression: "device.driver"}
	on := func(requests ...string) resourcev1.DeviceConstraint {
		return resourcev1.DeviceConstraint{Requests: requests, MatchAttribute: new(resourcev1.FullyQualifiedName("x.example.com/a"))}
	}
	const unused = `.name: Invalid value: "x.example.com/a": must be referenced by at least one matchAttribute or distinctAttribute constraint targeting this request`
	tests := []struct {
		name        string
		attributes  []resourcev1.DeviceDerivedAttribute
		constraints []resourcev1.DeviceConstraint
		want        []string
	}{
		{"compared everywhere", []resourcev1.DeviceDerivedAttribute{plain}, []resourcev1.DeviceConstraint{on()}, nil},
		{"compared for the request", []resourcev1.DeviceDerivedAttribute{plain}, []resourcev1.DeviceConstraint{on("r")}, nil},
		{"compared for another", []resourcev1.DeviceDerivedAttribute{plain}, []resourcev1.DeviceConstraint{on("s")}, []string{at + "[0]" + unused}},
		{"compared nowhere", []resourcev1.DeviceDerivedAttribute{plain}, nil, []string{at + "[0]" + unused}},
		{"the same twice", []resourcev1.DeviceDerivedAttribute{plain, plain}, []resourcev1.DeviceConstraint{on()},
			[]string{at + `[1]: Duplicate value: "x.example.com/a"`}},
		{"no scalar", []resourcev1.DeviceDerivedAttribute{{Name: plain.Name, Expression: "{'a': 1}"}}, []resourcev1.DeviceConstraint{on()},
			[]string{at + `[0].expression: Invalid value: "{'a': 1}": must evaluate to a primitive scalar (string, integer, boolean, semver), not map(string, int)`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := &resourcev1.ResourceClaim{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
				Requests: []resourcev1.DeviceRequest{
					{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "c", AllocationMode: "All", DerivedAttributes: tt.attributes}},
					{Name: "s", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "c", AllocationMode: "All"}},
				},
				Constraints: tt.constraints,
			}}}
			if d := cmp.Diff(tt.want, texts(validateClaim(c))); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestAlternativesDeriveForTheirRequest(t *testing.T) {
	c := &resourcev1.ResourceClaim{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
		Requests: []resourcev1.DeviceRequest{{Name: "r", FirstAvailable: []resourcev1.DeviceSubRequest{{
			Name: "f", DeviceClassName: "c", AllocationMode: "All",
			DerivedAttributes: []resourcev1.DeviceDerivedAttribute{{Name: "x.example.com/a", Expression: "device.driver"}},
		}}}},
		Constraints: []resourcev1.DeviceConstraint{{Requests: []string{"r"}, DistinctAttribute: new(resourcev1.FullyQualifiedName("x.example.com/a"))}},
	}}}
	for _, request := range []string{"r", "r/f"} {
		c.Spec.Devices.Constraints[0].Requests[0] = request
		if got := texts(validateClaim(c)); got != nil {
			t.Errorf("compared for %s: %v", request, got)
		}
	}
}

func TestResultsOfAllocation(t *testing.T) {
	const at = "status.allocation.devices.results[0]"
	old := &resourcev1.ResourceClaim{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
		Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "c"}}},
	}}}
	c := old.DeepCopy()
	c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{
		Request: "r", Driver: "d.example.com", Pool: "p", Device: "d",
		BindingConditions:  []string{"a"},
		Tolerations:        []resourcev1.DeviceToleration{{Operator: "Exists", Value: "v", Effect: "None"}},
		SkipNodeOperations: []resourcev1.SkipNodeOperation{"NodePrepareResources"},
	}}}}
	want := []string{
		at + `.bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use bindingConditions`,
		at + ".tolerations[0].value: Invalid value: \"v\": must be empty for operator `Exists`",
		at + `.skipNodeOperations: Invalid value: ["NodePrepareResources"]: NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped`,
	}
	if d := cmp.Diff(want, texts(validateClaimStatusUpdate(c, old))); d != "" {
		t.Errorf("differs (-want +got):\n%s", d)
	}
}

func TestReservationsOfClaims(t *testing.T) {
	user := func(name string) resourcev1.ResourceClaimConsumerReference {
		return resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: "u"}
	}
	tests := []struct {
		name               string
		allocated, deleted bool
		before, now        string
		want               []string
	}{
		{"of an allocated one", true, false, "a", "b", nil},
		{"of one that is not", false, true, "a", "b", []string{"status.reservedFor: Forbidden: may not be specified when `allocated` is not set"}},
		{"another while it goes", true, true, "a", "b", []string{"status.reservedFor: Forbidden: new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"}},
		{"the same while it goes", true, true, "a", "a", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			old := &resourcev1.ResourceClaim{}
			old.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{user(tt.before)}
			if tt.allocated {
				old.Status.Allocation = &resourcev1.AllocationResult{}
			}
			c := old.DeepCopy()
			c.Status.ReservedFor[0] = user(tt.now)
			if tt.deleted {
				c.DeletionTimestamp = &metav1.Time{}
			}
			if d := cmp.Diff(tt.want, texts(validateClaimStatusUpdate(c, old))); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestClassesKeepWhatTheyHave(t *testing.T) {
	class := func(expression string, parameters string) *resourcev1.DeviceClass {
		return &resourcev1.DeviceClass{Spec: resourcev1.DeviceClassSpec{
			Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}},
			Config: []resourcev1.DeviceClassConfiguration{{DeviceConfiguration: resourcev1.DeviceConfiguration{
				Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: "d.example.com", Parameters: runtime.RawExtension{Raw: []byte(parameters)}},
			}}},
		}}
	}
	if got := texts(validateClassUpdate(class("gone()", "[]"), class("gone()", "[]"))); got != nil {
		t.Errorf("what was there is refused: %v", got)
	}
	if got := validateClassUpdate(class("gone()", "[]"), class("true", "{}")); len(got) != 2 {
		t.Errorf("a change to what is wrong: %v", got)
	}
}

func TestAnswersAboutPoolsStay(t *testing.T) {
	answer := func(pools int32, conditions ...metav1.Condition) *resourcev1alpha3.ResourcePoolStatusRequest {
		return &resourcev1alpha3.ResourcePoolStatusRequest{Status: &resourcev1alpha3.ResourcePoolStatusRequestStatus{PoolCount: &pools, Conditions: conditions}}
	}
	asked := &resourcev1alpha3.ResourcePoolStatusRequest{}
	tests := []struct {
		name    string
		is, was *resourcev1alpha3.ResourcePoolStatusRequest
		want    []string
	}{
		{"none yet", asked, asked, nil},
		{"the first", answer(1), asked, nil},
		{"the same again", answer(1), answer(1), nil},
		{"another", answer(2), answer(1), []string{`status: Invalid value: {"poolCount":2}: field is immutable`}},
		{"none any more", asked, answer(1), []string{`status: Invalid value: null: field is immutable`}},
		{"with a condition that says no time", answer(1, metav1.Condition{Type: "Complete", Status: "True", Reason: "R"}), asked,
			[]string{"status.conditions[0].lastTransitionTime: Required value"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, texts(validateAnswer(tt.is, tt.was))); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}
