// What the published runner calls and its package does not have: parts of the report that it writes.
package lib

import (
	"encoding/json"
	"os"
	"runtime"
)

const SchemaVersionV11 = "1.1"

func CaptureCommit() *CommitInfo { return nil }

func CaptureEnvironment() *EnvironmentInfo {
	return &EnvironmentInfo{OS: runtime.GOOS, Arch: runtime.GOARCH, GoVersion: runtime.Version()}
}

func WriteReportFile(path string, report SuiteReport) error {
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}
