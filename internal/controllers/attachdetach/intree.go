package attachdetach

import (
	corev1 "k8s.io/api/core/v1"
	translation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
)

var translator = translation.New()

// csiOf is what a driver attaches for a volume, nil when none does. Volumes of the
// plugins that Kubernetes once had itself are those of CSI drivers today (KEP-625).
func csiOf(pv *corev1.PersistentVolume) *corev1.CSIPersistentVolumeSource {
	if pv.Spec.CSI != nil || !translator.IsPVMigratable(pv) {
		return pv.Spec.CSI
	}
	translated, err := translator.TranslateInTreePVToCSI(klog.Background(), pv)
	if err != nil {
		return nil
	}
	return translated.Spec.CSI
}
