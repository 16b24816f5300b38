/* SPDX-License-Identifier: MIT */
#include "base/buf.h"
