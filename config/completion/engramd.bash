# SPDX-License-Identifier: Apache-2.0
# bash completion for engramd(8)

_engramd()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}

	case $prev in
	-c | --config)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
	--inspect | --write-manifest | --check-manifest)
		mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
	*)
		mapfile -t COMPREPLY < <(compgen -W \
			"--config --check --inspect --table --json --tp-size --token-map
				--write-manifest --check-manifest
				--help --version" -- "$cur") ;;
	esac
}

complete -F _engramd engramd
