/* SPDX-License-Identifier: MIT */
#include "registry/registry.h"
