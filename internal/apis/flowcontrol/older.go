package flowcontrol

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	flowcontrolv1beta1 "k8s.io/api/flowcontrol/v1beta1"
	flowcontrolv1beta2 "k8s.io/api/flowcontrol/v1beta2"
	flowcontrolv1beta3 "k8s.io/api/flowcontrol/v1beta3"
	"k8s.io/apimachinery/pkg/runtime"

	"proa/internal/apis"
)

// Older releases stored the kinds as v1beta1 to v1beta3, which nobody serves any more.
var (
	olderSchemas = []apis.Served{
		older[flowcontrolv1beta1.FlowSchema, flowcontrolv1beta1.FlowSchemaList, flowcontrolv1.FlowSchema]("v1beta1", "FlowSchema"),
		older[flowcontrolv1beta2.FlowSchema, flowcontrolv1beta2.FlowSchemaList, flowcontrolv1.FlowSchema]("v1beta2", "FlowSchema"),
		older[flowcontrolv1beta3.FlowSchema, flowcontrolv1beta3.FlowSchemaList, flowcontrolv1.FlowSchema]("v1beta3", "FlowSchema"),
	}
	olderLevels = []apis.Served{
		older[flowcontrolv1beta1.PriorityLevelConfiguration, flowcontrolv1beta1.PriorityLevelConfigurationList, flowcontrolv1.PriorityLevelConfiguration]("v1beta1", "PriorityLevelConfiguration"),
		older[flowcontrolv1beta2.PriorityLevelConfiguration, flowcontrolv1beta2.PriorityLevelConfigurationList, flowcontrolv1.PriorityLevelConfiguration]("v1beta2", "PriorityLevelConfiguration"),
		older[flowcontrolv1beta3.PriorityLevelConfiguration, flowcontrolv1beta3.PriorityLevelConfigurationList, flowcontrolv1.PriorityLevelConfiguration]("v1beta3", "PriorityLevelConfiguration"),
	}
)

// message is what the generated types offer.
type message interface {
	apis.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// older is a version that differs from v1 in names alone: on the wire, where fields
// have numbers, both are the same.
func older[S, SL, H any, SP interface {
	*S
	message
}, SLP interface {
	*SL
	runtime.Object
}, HP interface {
	*H
	message
}](version, kind string) apis.Served {
	return apis.Served{
		Group: group, Version: version, Kind: kind, New: apis.New[S, SP], NewList: apis.NewList[SL, SLP],
		ToHub: func(obj apis.Object) (apis.Object, error) {
			hub := HP(new(H))
			if err := rename(hub, obj); err != nil {
				return nil, err
			}
			// Until v1 an annotation told shares of 0 from absent ones.
			delete(hub.GetAnnotations(), flowcontrolv1beta3.PriorityLevelPreserveZeroConcurrencySharesKey)
			return hub, nil
		},
		FromHub: func(obj apis.Object) (apis.Object, error) {
			served := SP(new(S))
			return served, rename(served, obj)
		},
	}
}

func rename(to message, from apis.Object) error {
	wire, err := from.(message).Marshal()
	if err != nil {
		return err
	}
	return to.Unmarshal(wire)
}
