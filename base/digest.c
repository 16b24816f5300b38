/* SPDX-License-Identifier: MIT */
#include "base/digest.h"
