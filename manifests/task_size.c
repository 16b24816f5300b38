/* SPDX-License-Identifier: MIT */
#include "manifests/manifest.h"
