# What people type; Meson does the work.
BUILD := build
.PHONY: build
build:
	@test -f $(BUILD)/build.ninja || meson setup $(BUILD) >/dev/null
	@ninja -C $(BUILD) --quiet
