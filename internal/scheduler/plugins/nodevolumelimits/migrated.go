package nodevolumelimits

import (
	corev1 "k8s.io/api/core/v1"
	translation "k8s.io/csi-translation-lib"
	intree "k8s.io/csi-translation-lib/plugins"
	"k8s.io/klog/v2"
)

// Volumes of the plugins that Kubernetes once had itself are attached by CSI
// drivers today, and count for those drivers' limits (KEP-625).

var translator = translation.New()

// migrated names the old plugins whose volumes are attached to nodes.
var migrated = map[string]bool{
	intree.AWSEBSInTreePluginName: true, intree.AzureDiskInTreePluginName: true, intree.CinderInTreePluginName: true,
	intree.GCEPDInTreePluginName: true, intree.PortworxVolumePluginName: true,
}

func migratedInline(v *corev1.Volume) bool {
	if v.AWSElasticBlockStore == nil && v.AzureDisk == nil && v.Cinder == nil && v.GCEPersistentDisk == nil && v.PortworxVolume == nil {
		return false
	}
	return translator.IsInlineMigratable(v)
}

// ofInline is what a driver attaches for a volume that a pod describes itself.
func ofInline(v *corev1.Volume, namespace string) (attached, bool) {
	if !migratedInline(v) {
		return attached{}, false
	}
	volume, err := translator.TranslateInTreeInlineVolumeToCSI(klog.Background(), v, namespace)
	return ofTranslated(volume, err)
}

// ofVolume is what a driver attaches for a volume.
func ofVolume(v *corev1.PersistentVolume) (attached, bool) {
	if v.Spec.CSI != nil || !translator.IsPVMigratable(v) {
		return ofTranslated(v, nil)
	}
	if name, err := translator.GetInTreePluginNameFromSpec(v, nil); err != nil || !migrated[name] {
		return attached{}, false
	}
	volume, err := translator.TranslateInTreePVToCSI(klog.Background(), v)
	return ofTranslated(volume, err)
}

// ofTranslated: a volume that cannot be translated is not attached either.
func ofTranslated(v *corev1.PersistentVolume, err error) (attached, bool) {
	if err != nil || v == nil || v.Spec.CSI == nil {
		return attached{}, false
	}
	return attached{v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle}, true
}

// driverOf is the driver that makes the volumes of a provisioner.
func driverOf(provisioner string) string {
	if migrated[provisioner] {
		if driver, err := translator.GetCSINameFromInTreeName(provisioner); err == nil {
			return driver
		}
	}
	return provisioner
}
