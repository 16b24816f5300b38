/* SPDX-License-Identifier: MIT */
#include "base/file.h"
