/* SPDX-License-Identifier: MIT */
#include "base/json.h"
