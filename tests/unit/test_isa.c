/* SPDX-License-Identifier: Apache-2.0 */
/* Which instruction set is taken: by the environment at the first use, by a
 * call at any time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engram_kernels.h"

static int has(enum engram_isa isa)
{
	return engram_cpu_set_isa(isa) == ENGRAM_OK;
}

/* What a process takes that starts with ENGRAM_ISA=value, or without. */
static enum engram_isa taken(const char *value)
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		if (value)
			setenv("ENGRAM_ISA", value, 1);
		else
			unsetenv("ENGRAM_ISA");
		_exit((int)engram_cpu_isa());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return (enum engram_isa)WEXITSTATUS(status);
}

/* The first test, since nothing may have asked before the children do. */
static void test_environment(void **state)
{
	enum engram_isa best = taken(NULL);
	enum engram_isa avx2 = taken("avx2"), avx512 = taken("avx512");

	(void)state;
	assert_int_equal(taken("scalar"), ENGRAM_ISA_SCALAR);
	assert_int_equal(taken(""), best);
	assert_int_equal(taken("AVX2"), best);
	assert_int_equal(taken("sse"), best);
	assert_int_equal(avx2, has(ENGRAM_ISA_AVX2) ? ENGRAM_ISA_AVX2 : best);
	assert_int_equal(avx512,
			 has(ENGRAM_ISA_AVX512) ? ENGRAM_ISA_AVX512 : best);
}

static void test_set(void **state)
{
	enum engram_isa best = ENGRAM_ISA_SCALAR;

	(void)state;
	for (int isa = ENGRAM_ISA_SCALAR; isa <= ENGRAM_ISA_AVX512; isa++) {
		enum engram_isa before = engram_cpu_isa();

		if (has((enum engram_isa)isa))
			best = before = (enum engram_isa)isa;
		assert_int_equal(engram_cpu_isa(), before);
	}
	assert_int_equal(engram_cpu_set_isa((enum engram_isa)4),
			 ENGRAM_EUNSUPPORTED);
	assert_int_equal(engram_cpu_isa(), best);
	assert_int_equal(engram_cpu_set_isa(ENGRAM_ISA_SCALAR), 0);
	assert_int_equal(engram_cpu_set_isa(ENGRAM_ISA_AUTO), 0);
	assert_int_equal(engram_cpu_isa(), best);
}

static void test_names(void **state)
{
	(void)state;
	assert_string_equal(engram_isa_name(ENGRAM_ISA_AUTO), "auto");
	assert_string_equal(engram_isa_name(ENGRAM_ISA_SCALAR), "scalar");
	assert_string_equal(engram_isa_name(ENGRAM_ISA_AVX2), "avx2");
	assert_string_equal(engram_isa_name(ENGRAM_ISA_AVX512), "avx512");
	assert_string_equal(engram_isa_name((enum engram_isa)4), "unknown");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_environment),
		cmocka_unit_test(test_set),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
